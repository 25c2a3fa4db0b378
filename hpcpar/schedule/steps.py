"""The steps of an iteration: the simulator prices this list, and the executor runs it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hpcpar.plan.boxes import Box
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.layout import Layout


class Phase(str, Enum):
    """Part of an iteration."""

    FORWARD = "forward"
    LOSS = "loss"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    GRADIENT = "gradient"
    UPDATE = "update"


#: The phases that every micro-batch goes through.
PASSES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)


class Kind(str, Enum):
    """Communication pattern of a step."""

    HALO = "halo"
    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLREDUCE = "allreduce"
    REDISTRIBUTE = "redistribute"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


#: Kinds as small integers, for arrays over many cases; 0 means no communication.
CODES = {kind: np.int8(code) for code, kind in enumerate(Kind, 1)}


class Op(str, Enum):
    """Operation of a compute step."""

    STATISTICS = "statistics"
    FORWARD = "forward"
    INTERIOR = "interior"
    BOUNDARY = "boundary"
    BACKWARD = "backward"
    BACKWARD_WEIGHT = "backward_weight"
    ACCUMULATE = "accumulate"
    UPDATE = "update"


class Role(str, Enum):
    """The role of a tensor in its layer."""

    INPUT = "input"
    OUTPUT = "output"
    MOMENTS = "moments"
    WEIGHT = "weight"
    LOSS = "loss"


@dataclass(frozen=True)
class TensorRef:
    """A tensor of a layer, or its gradient. The loss has an empty `layer`; `input` is an index
    among the layer's inputs.
    """

    layer: str
    role: Role
    input: int = 0
    gradient: bool = False

    def __str__(self) -> str:
        name = f"{self.layer}.{self.role.value}" if self.layer else self.role.value
        return f"{name}{self.input or ''}{'.gradient' if self.gradient else ''}"


@dataclass(frozen=True)
class Group:
    """Ranks that communicate with each other: they differ only in the given coordinates, counted
    from rank `first`.
    """

    mesh_axes: tuple[MeshAxis, ...]
    first: int = 0

    @property
    def size(self) -> int:
        return math.prod(int(d.size) for d in self.mesh_axes)

    def index(self, rank: int) -> int:
        """Position of `rank` in its group."""
        index = 0
        for mesh_axis in self._slowest_first:
            index = index * int(mesh_axis.size) + int(mesh_axis.of(rank - self.first))
        return index

    def members(self, rank: int) -> tuple[int, ...]:
        """The ranks of the group that `rank` belongs to, by position."""
        base = rank - sum(int(d.of(rank - self.first) * d.stride) for d in self.mesh_axes)
        offsets = [[i * int(d.stride) for i in range(int(d.size))] for d in self._slowest_first]
        return tuple(base + sum(chosen) for chosen in itertools.product(*offsets))

    @property
    def _slowest_first(self) -> list[MeshAxis]:
        return sorted(self.mesh_axes, key=lambda mesh_axis: -int(mesh_axis.stride))


@dataclass(frozen=True)
class Compute:
    """An operation of a layer; every rank computes it on its own boxes.

    Attributes
    ----------
    part : int
        Index of the micro-batch, or of the pass through the fully connected layers.
    tensor : TensorRef or None
        For `Op.ACCUMULATE`, the input whose gradient is added.
    """

    index: int
    phase: Phase
    layer: str
    op: Op
    part: int = 0
    tensor: TensorRef | None = None

    @property
    def label(self) -> str:
        return f"{self.layer}.{self.op.value}"


@dataclass(frozen=True)
class Comm:
    """A movement of one tensor between ranks.

    Attributes
    ----------
    source, destination : Layout
        Boxes before and after the movement.
    reduce : bool
        The source holds partial sums, and the destination their totals.
    group : Group or None
        Members of a collective. None for point-to-point patterns (halo, redistribute), whose
        messages follow from the boxes.
    algorithm : str
        Name of the algorithm (`hpcpar.schedule.algorithms`); "direct" point to point.
    segments : int
        Pieces that each message of a ring is cut into, so that summing one overlaps the transfer of
        the next.
    item_bytes : int
        Size of an element on the wire.
    needed_by : int
        Index of the first step that uses the result. The steps in between may overlap this one.
    part : int
        Index of the micro-batch, or of the pass through the fully connected layers.
    root : int
        Position of a reduction's or broadcast's root in the group.
    covers : tuple of str
        For a gradient sum, the layers whose gradients lie side by side in the buffer.
    inner : int
        Group members per node where halving is hierarchical; else 1.
    """

    index: int
    phase: Phase
    layer: str
    tensor: TensorRef
    kind: Kind
    source: Layout
    destination: Layout
    reduce: bool
    group: Group | None
    algorithm: str
    segments: int
    item_bytes: int
    needed_by: int
    part: int = 0
    root: int = 0
    covers: tuple[str, ...] = ()
    inner: int = 1

    @property
    def label(self) -> str:
        return f"{self.layer}.{self.phase.value}.{self.kind.value}"

    def source_box(self, rank: int) -> Box:
        """`rank`'s box before the movement."""
        return self.source.box(rank)

    def destination_box(self, rank: int) -> Box:
        """`rank`'s box after the movement."""
        return self.destination.box(rank)

    def concerns(self, rank: int) -> bool:
        """True where `rank` holds the tensor before or after the movement."""
        return self.source.holds(rank) or self.destination.holds(rank)

    @property
    def between(self) -> bool:
        """True where the tensor moves from one set of ranks to another (pipeline stages)."""
        a, b = self.source.config, self.destination.config
        return bool(a.first != b.first or a.ranks != b.ranks)


Step = Compute | Comm


@dataclass(frozen=True)
class Schedule:
    """The frozen steps of one iteration."""

    ranks: int
    steps: tuple[Step, ...]

    @property
    def comms(self) -> tuple[Comm, ...]:
        return tuple(s for s in self.steps if isinstance(s, Comm))
