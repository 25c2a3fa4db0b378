"""Reading ONNX files into nodes, attributes and constants, free of the types of package onnx."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError

Array = npt.NDArray[np.int64 | np.float64]


@dataclass(frozen=True)
class Constant:
    """A tensor whose value does not depend on the input.

    Attributes
    ----------
    dims : tuple of int
        Its shape.
    read : callable
        Returns the values; never called for weights, which may lie in an external file.
    """

    dims: tuple[int, ...]
    read: Callable[[], Array]

    @staticmethod
    def of(value: Array) -> Constant:
        """A constant of known value."""
        return Constant(value.shape, lambda: value)


Attribute = float | bytes | Sequence[int] | Sequence[float]


@dataclass(frozen=True)
class Node:
    """One operator. Only its first output may be used.

    Attributes
    ----------
    compute : callable
        The first output from the values of all inputs, by ONNX's reference evaluator.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    path: str
    compute: Callable[[Sequence[Array | None]], Array]

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer attribute, required unless it has a default."""
        return cast(int, self.attributes[key] if default is None
                    else self.attributes.get(key, default))

    def number(self, key: str, default: float) -> float:
        """A floating-point attribute."""
        return cast(float, self.attributes.get(key, default))

    def integers(self, key: str, default: Iterable[int] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        return tuple(cast(Iterable[int], self.attributes.get(key, default)))

    def error(self, why: str) -> InputError:
        """An error that names this node."""
        return InputError(f"'{self.path}': node '{self.name}' ({self.op}): {why}")


@dataclass(frozen=True)
class OnnxFile:
    """The contents of a file.

    Attributes
    ----------
    nodes : tuple of Node
        The operators that the output depends on, in order of execution.
    constants : dict
        Initializers by name.
    input_dims : tuple
        Extents of the input, samples first; None where the file leaves them open.
    """

    path: str
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    input: str
    input_dims: tuple[int | None, ...]
    output: str


class TensorProto(Protocol):
    """The part of ``onnx.TensorProto`` that is read."""

    @property
    def dims(self) -> Iterable[int]: ...


class NodeProto(Protocol):
    """The part of ``onnx.NodeProto`` that is read."""

    @property
    def input(self) -> Sequence[str]: ...
    @property
    def output(self) -> Sequence[str]: ...


def read(path: str) -> OnnxFile:
    """Read a file.

    Raises
    ------
    InputError
        The package onnx is missing, the file is missing or damaged, or it has several inputs or
        outputs.
    """
    try:
        onnx = importlib.import_module("onnx")
        evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    except ImportError as err:
        raise InputError(
            f"reading '{path}' needs the package onnx: pip install hpcpar[onnx]") from err
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as err:
        raise InputError(f"cannot read '{path}': {err.strerror or err}") from err
    except Exception as err:  # protobuf's exceptions differ by version
        raise InputError(f"'{path}' is not an ONNX file") from err

    def constant(tensor: TensorProto) -> Constant:
        return Constant(tuple(tensor.dims), lambda: np.asarray(onnx.numpy_helper.to_array(tensor)))

    graph, opsets = model.graph, {each.domain: each.version for each in model.opset_import}

    def compute(node: NodeProto, values: Sequence[Array | None]) -> Array:
        alone = onnx.helper.make_graph([node], "node", [], [])
        feeds = dict(zip(node.input, values, strict=True))
        return np.asarray(evaluator(alone, opsets=opsets).run([node.output[0]], feeds)[0])

    constants = {tensor.name: constant(tensor) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    for what, values in ("input", inputs), ("output", graph.output):
        if len(values) != 1:
            names = ", ".join(value.name for value in values)
            raise InputError(
                f"'{path}' has {len(values)} {what}s ({names}); export a network with one")
    nodes = []
    for i, node in enumerate(graph.node):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        name = node.name or f"{node.op_type.lower()}{i}"
        nodes.append(Node(op, name, tuple(node.input), tuple(node.output), attributes, path,
                          partial(compute, node)))
    dims = tuple(d.dim_value or None for d in inputs[0].type.tensor_type.shape.dim)
    output = graph.output[0].name
    return OnnxFile(path, _live_nodes(nodes, output), constants, inputs[0].name, dims, output)


def _live_nodes(nodes: list[Node], output: str) -> tuple[Node, ...]:
    """The nodes that the output depends on, in order."""
    needed, live = {output}, []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            live.append(node)
    return tuple(reversed(live))
