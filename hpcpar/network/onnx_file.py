"""What an ONNX file says, without the package's own types: nodes with attributes, constants, input
and output.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Constant:
    """A tensor known from the file. Of weights only the dimensions are ever asked for."""

    dims: tuple[int, ...]
    read: Callable[[], Array]

    @staticmethod
    def of(value: Array) -> Constant:
        return Constant(value.shape, lambda: value)


@dataclass(frozen=True)
class Node:
    """One operator: its first output is the only one that may be used."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    path: str

    def error(self, why: str) -> InputError:
        """The error that names this node."""
        return InputError(f"'{self.path}': node '{self.name}' ({self.op}): {why}")


@dataclass(frozen=True)
class File:
    """The operators that the output depends on, in order of execution.

    Attributes
    ----------
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


def read(path: str) -> File:
    """Read a file.

    Raises
    ------
    InputError
        The package onnx is missing, the file is missing or damaged, or it has several inputs or
        outputs.
    """
    try:
        onnx = importlib.import_module("onnx")
        numpy_helper = importlib.import_module("onnx.numpy_helper")
    except ImportError as err:
        raise InputError(
            f"reading '{path}' needs the package onnx: pip install hpcpar[onnx]") from err
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except OSError as err:
        raise InputError(f"cannot read '{path}': {err.strerror or err}") from err
    except Exception as err:  # the protocol buffers' own errors differ by version
        raise InputError(f"'{path}' is not an ONNX file") from err

    def constant(tensor: Any) -> Constant:
        return Constant(tuple(tensor.dims), lambda: np.asarray(numpy_helper.to_array(tensor)))

    constants = {tensor.name: constant(tensor) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    for what, values in ("input", inputs), ("output", graph.output):
        if len(values) != 1:
            raise InputError(f"'{path}' has {len(values)} {what}s ({', '.join(v.name for v in values)}); export a network with one")
    nodes = []
    for i, node in enumerate(graph.node):
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Constant" and "value" in attributes:
            attributes["value"] = constant(attributes["value"])
        op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        nodes.append(Node(op, node.name or f"{node.op_type.lower()}{i}", tuple(node.input),
                          tuple(node.output), attributes, path))
    dims = tuple(d.dim_value or None for d in inputs[0].type.tensor_type.shape.dim)
    output = graph.output[0].name
    return File(path, _used(nodes, output), constants, inputs[0].name, dims, output)


def _used(nodes: list[Node], output: str) -> tuple[Node, ...]:
    """The nodes that the output depends on."""
    wanted, kept = {output}, []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))
