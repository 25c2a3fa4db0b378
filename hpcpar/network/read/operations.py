"""Operators read from a file or a module, named as in ONNX, before they become layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import cast

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError

#: Placeholder for the number of samples in shapes.
BATCH = -(1 << 40)
Array = npt.NDArray[np.int64 | np.float64]
Attribute = float | bytes | Sequence[int] | Sequence[float]

#: Advice in errors for common operators without a layer.
REMEDIES = {
    **dict.fromkeys(("bmm", "einsum.default", "scaleddotproductattention", "baddbmm"),
                    "give the PyTorch module itself as --network, not an ONNX file"),
    "batchnorm.default": "let it normalize by the batch when the module trains, and keep "
                         "track_running_stats=True for its evaluation",
    "instancenorm.default": "leave track_running_stats=True out: each image has its own statistics",
}


@dataclass(frozen=True)
class Constant:
    """A tensor whose value does not depend on the input.

    Attributes
    ----------
    dims : tuple of int
        Shape.
    read : callable
        Returns the values; never called for weights, which may be in an external file.
    origins : frozenset of str
        Names of the stored tensors from which it comes; empty for a literal.
    remark : str
        Why the source does not train the values as they are, or ''.
    computed : bool
        Whether its values are computed from `origins` rather than stored.
    frozen : bool
        Whether the source stores it without training it.
    drops, kept : float
        For random factors of samples (stochastic depth): the share of samples with factor 0, and
        the factor of the others.
    node : Node or None
        The operator that computes it from other constants, if its value is not known.
    """

    dims: tuple[int, ...]
    read: Callable[[], Array]
    origins: frozenset[str] = frozenset()
    remark: str = ""
    computed: bool = False
    frozen: bool = False
    drops: float = 0.0
    kept: float = 0.0
    node: Node | None = None

    @property
    def trained(self) -> bool:
        """True if the source trains the values as they are."""
        return bool(self.origins) and not self.remark

    @property
    def stored(self) -> str:
        """Name of the stored tensor with the same values, or ''."""
        (name, *more) = sorted(self.origins) or [""]
        return "" if self.computed or more else name

    @staticmethod
    def of(value: Array, origins: frozenset[str] = frozenset()) -> Constant:
        """A constant with a known value, computed from `origins`."""
        remark = _computed_from(origins) if origins else "is a literal"
        return Constant(value.shape, lambda: value, origins, remark, bool(origins))

    @staticmethod
    def unknown(dims: tuple[int, ...], origins: frozenset[str] = frozenset(),
                node: Node | None = None) -> Constant:
        """A constant that is computed from `origins`, without its values."""
        return Constant(dims, unread, origins, _computed_from(origins), computed=True, node=node)

    def transposed(self, order: Sequence[int]) -> Constant:
        """The same values with the axes in another order."""
        return Constant(tuple(self.dims[i] for i in order),
                        lambda: np.transpose(self.read(), order), self.origins, self.remark)


def _computed_from(origins: frozenset[str]) -> str:
    return f"is computed from {', '.join(sorted(origins))}, as weight_norm does"


def unread() -> Array:
    """Instead of the values of a constant that a module computes."""
    raise InputError("the module computes it; store it as a buffer")


@dataclass(frozen=True)
class Node:
    """One operator; only its first output may be used.

    Attributes
    ----------
    compute : callable
        Computes the first output from the values of all inputs.
    folded : bool
        Whether an exporter folded a batch normalization into it.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]
    compute: Callable[[Sequence[Array | None]], Array] | None = None
    folded: bool = False

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer attribute; required if there is no default."""
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
        if not isinstance(value, Iterable) or not all(isinstance(item, int) for item in value):
            raise self._wrong(key, "a list of whole numbers")
        return tuple(cast(Iterable[int], value))

    def _wrong(self, key: str, expected: str) -> NodeError:
        return self.error(f"attribute '{key}' is missing or is not {expected}; export it again")

    def error(self, why: str) -> NodeError:
        """An error that names this node."""
        return NodeError(self, why)


class NodeError(InputError):
    """An operator `node` cannot be converted; `why` names the fault and the remedy."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(f"node '{node.name}' ({node.op}): {why}")
        self.node, self.why = node, why


class NodeErrors(InputError):
    """Operators that cannot be converted."""

    def __init__(self, source: str, errors: Sequence[NodeError]) -> None:
        super().__init__(f"{source}: {'; '.join(grouped(errors))}")
        self.errors = errors


@dataclass(frozen=True)
class Operations:
    """All operators of a network.

    Attributes
    ----------
    source : str
        Name of the file or module in messages.
    nodes : tuple of Node
        The operators in order of execution.
    constants : dict
        Stored tensors by name.
    input_dims : tuple
        Extents of the input, samples first; None for open extents.
    shapes : dict
        Sample shapes of tensors, as far as the source states them.
    exact_sharing : bool
        Whether one tensor in two layers always means shared weights; exporters also merge equal
        vectors.
    channels_last : bool
        Whether the input has its channels last, where the network's has them first.
    notes : tuple of str
        Differences between the network and its source.
    """

    source: str
    nodes: tuple[Node, ...]
    constants: dict[str, Constant]
    input: str
    input_dims: tuple[int | None, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    exact_sharing: bool = False
    channels_last: bool = False
    notes: tuple[str, ...] = ()

    @cached_property
    def dimensions(self) -> int:
        """Image axes of the input; of what convolutions read, if the input is features."""
        weights = (self.constants[node.inputs[1]].dims for node in self.nodes
                   if node.op in ("Conv", "ConvTranspose") and node.inputs[1] in self.constants)
        return len(self.input_dims) - 2 or max((len(dims) - 2 for dims in weights), default=0)

    def live(self) -> tuple[Node, ...]:
        """The nodes on which the outputs depend, in order."""
        needed, live = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed |= set(node.inputs)
                live.append(node)
        return tuple(reversed(live))


def grouped(errors: Sequence[NodeError]) -> list[str]:
    """Error messages, one for all nodes with the same operator and fault."""
    groups: dict[tuple[str, str], list[str]] = {}
    for err in errors:
        groups.setdefault((err.node.op, err.why), []).append(f"'{err.node.name}'")
    texts = []
    for (op, why), names in groups.items():
        nodes = "nodes" if len(names) > 1 else "node"
        texts.append(f"{nodes} {first_three(names)} ({op}): {why}")
    return texts


def first_three(names: Sequence[str]) -> str:
    """The first three names and the number of the others."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def decimal(value: Array) -> float:
    """One number; single precision as its short decimal, 1e-05 for 9.9999997e-06."""
    single = value.dtype == np.float32
    return float(str(np.float32(value.item()))) if single else float(value.item())
