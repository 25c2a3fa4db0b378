"""Operators of a network from elsewhere, in the words of ONNX: what is read from a file or a module
before it becomes layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import cast

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError

#: Placeholder for the number of samples in shapes, whatever the source was exported with.
BATCH = -(1 << 40)
Array = npt.NDArray[np.int64 | np.float64]
Attribute = float | bytes | Sequence[int] | Sequence[float]

#: Advice in the error for some common operators without a layer.
REMEDIES = {
    "softplus": "use ReLU or SiLU",
    "detach.default": "no gradient passes there, which no layer does; leave it out",
    **dict.fromkeys(("bmm", "einsum.default", "scaleddotproductattention", "baddbmm"),
                    "attention over pixels is out of scope"),
    "depthtospace": "use an upsampling or a transposed convolution",
    "pixelshuffle": "use an upsampling or a transposed convolution",
    "batchnorm.default": "let it normalise by the batch when the module trains, and keep "
                         "track_running_stats=True for its evaluation",
    "instancenorm.default": "leave track_running_stats=True out: each image has its own statistics",
}


@dataclass(frozen=True)
class Constant:
    """A tensor whose value does not depend on the input.

    Attributes
    ----------
    dims : tuple of int
        Its shape.
    read : callable
        Returns the values; never called for weights, which may lie in an external file.
    origins : frozenset of str
        Names of the stored tensors that it comes from; none for a literal.
    remark : str
        Why the source does not train it as it is, if so.
    computed : bool
        Its values are not stored, but computed from `origins`.
    frozen : bool
        The source stores it, and does not train it.
    drops, kept : float
        Random factors of whole samples: the share of samples for which it is 0, and its value
        elsewhere.
    """

    dims: tuple[int, ...]
    read: Callable[[], Array]
    origins: frozenset[str] = frozenset()
    remark: str = ""
    computed: bool = False
    frozen: bool = False
    drops: float = 0.0
    kept: float = 0.0

    @property
    def trained(self) -> bool:
        """True where it is trained as it is."""
        return bool(self.origins) and not self.remark

    @property
    def stored(self) -> str:
        """The stored tensor whose values it has; empty where there is none."""
        (name, *more) = sorted(self.origins) or [""]
        return "" if self.computed or more else name

    @staticmethod
    def of(value: Array, origins: frozenset[str] = frozenset()) -> Constant:
        """A constant of known value, computed from `origins`."""
        remark = "is a literal"
        if origins:
            remark = f"is computed from {', '.join(sorted(origins))}, as weight_norm does"
        return Constant(value.shape, lambda: value, origins, remark, bool(origins))


@dataclass(frozen=True)
class Node:
    """One operator. Only its first output may be used.

    Attributes
    ----------
    compute : callable
        The first output from the values of all inputs.
    folded : bool
        Whether an exporter folded a batch normalisation into it.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    compute: Callable[[Sequence[Array | None]], Array] | None = None
    folded: bool = False

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer attribute, required unless it has a default."""
        value = self.attributes.get(key, default)
        if not isinstance(value, int):
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """A floating-point attribute; only a default may be infinite."""
        value = self.attributes.get(key, default)
        if not isinstance(value, int | float) or (key in self.attributes and not isfinite(value)):
            raise self._wrong(key, "a finite number")
        return value

    def text(self, key: str, default: str) -> str:
        """An attribute that is a string."""
        value = self.attributes.get(key, default.encode())
        if not isinstance(value, bytes) or not value.isascii():
            raise self._wrong(key, "a name")
        return value.decode("ascii")

    def integers(self, key: str, default: Iterable[int] = ()) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        value = self.attributes.get(key, default)
        if not isinstance(value, Iterable) or not all(isinstance(each, int) for each in value):
            raise self._wrong(key, "a list of whole numbers")
        return tuple(cast(Iterable[int], value))

    def _wrong(self, key: str, wanted: str) -> NodeError:
        return self.error(f"attribute '{key}' is missing or is not {wanted}; export it again")

    def error(self, why: str) -> NodeError:
        """An error that names this node."""
        return NodeError(self, why)


class NodeError(InputError):
    """An operator that cannot be converted.

    Attributes
    ----------
    node : Node
        The operator.
    why : str
        What is wrong, and the remedy.
    """

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(f"node '{node.name}' ({node.op}): {why}")
        self.node, self.why = node, why


@dataclass(frozen=True)
class Operations:
    """All operators of a network.

    Attributes
    ----------
    source : str
        The file or the module, as messages name it.
    nodes : tuple of Node
        The operators in order of execution.
    constants : dict
        Stored tensors by name.
    input_dims : tuple
        Extents of the input, samples first; None where they are open.
    shapes : dict
        Shape of a sample of each tensor, where the source tells.
    exact_sharing : bool
        Whether one stored tensor of two layers means shared weights: exporters also store equal
        vectors once.
    """

    source: str
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    input: str
    input_dims: tuple[int | None, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    exact_sharing: bool = False

    def live(self) -> tuple[Node, ...]:
        """The nodes that the outputs depend on, in order."""
        needed, live = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= set(node.inputs)
                live.append(node)
        return tuple(reversed(live))


def grouped(errors: Sequence[NodeError]) -> list[str]:
    """Messages of errors, one for each reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for err in errors:
        groups.setdefault((err.node.op, err.why), []).append(f"'{err.node.name}'")
    texts = []
    for (op, why), names in groups.items():
        nodes = "nodes" if len(names) > 1 else "node"
        texts.append(f"{nodes} {first_three(names)} ({op}): {why}")
    return texts


def first_three(names: Sequence[str]) -> str:
    """The first three names, and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def decimal(value: Array) -> float:
    """One number; of single precision as the decimal that it stands for, 1e-05 for 9.9999997e-06.
    """
    single = value.dtype == np.float32
    return float(str(np.float32(value.item()))) if single else float(value.item())
