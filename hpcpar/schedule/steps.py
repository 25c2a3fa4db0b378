"""Decides what a step is: the simulator prices the list of steps, and the executor runs it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.boxes import Box
from hpcpar.plan.config import Flags, Floats, Ints, MeshAxis, Names
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


Codes: TypeAlias = NDArray[np.int8]
#: Kinds as small integers, for arrays over many cases; 0 means no communication.
CODES = {kind: np.int8(code) for code, kind in enumerate(Kind, 1)}
#: Kinds whose messages are point to point; the others are collectives.
POINT_TO_POINT = (Kind.HALO, Kind.REDISTRIBUTE)
SUMMING = (Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE)
#: Codes that leave no choice of algorithm: no movement, and point-to-point messages.
DIRECT = (0, CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE])
#: Algorithm of a collective that is only priced: the cheapest, whichever it is.
CHEAPEST = "cheapest"
#: Algorithm of a sum in a host's memory, and of handing out the updated weights from there.
HOST = "host"


class Op(str, Enum):
    """Operation of a compute step."""

    STATISTICS = "statistics"
    FORWARD = "forward"
    INTERIOR = "interior"
    BOUNDARY = "boundary"
    BACKWARD = "backward"
    BACKWARD_WEIGHT = "backward_weight"
    ACCUMULATE = "accumulate"
    UNSCALE = "unscale"
    UPDATE = "update"
    HOST_UPDATE = "host_update"


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
class Pattern:
    """The pattern of a movement.

    Attributes
    ----------
    kind : Kind or None
        None where nothing moves.
    adds : bool
        The receiver of a halo exchange or a redistribution adds messages instead of copying them.
    mesh_axes : tuple of MeshAxis
        Coordinates of a collective's group.
    """

    kind: Kind | None
    adds: bool = False
    mesh_axes: tuple[MeshAxis, ...] = ()

    @property
    def code(self) -> np.int8:
        """The kind as one of `CODES`; 0 where nothing moves."""
        return np.int8(0) if self.kind is None else CODES[self.kind]

    @property
    def kinds(self) -> list[Kind]:
        """The kind; empty where nothing moves."""
        return [] if self.kind is None else [self.kind]

    @property
    def reduce(self) -> bool:
        """True where the receiver adds."""
        return self.kind in SUMMING or (self.adds and self.kind in POINT_TO_POINT)

    @property
    def group(self) -> Group | None:
        """A collective's group; None for other movements."""
        if self.kind is None or self.kind in POINT_TO_POINT:
            return None
        return Group(tuple(d for d in self.mesh_axes if d.size > 1))


NOTHING = Pattern(None)


@dataclass(frozen=True)
class PatternFamily:
    """The patterns of a movement in every case of a family; see `Pattern`.

    Attributes
    ----------
    code : ndarray
        One of `CODES` per case; 0 where nothing moves.
    mesh_axes : tuple of MeshAxis
        Coordinates of the group; in cases where a coordinate does not count, its size is 1.
    """

    code: Codes
    adds: bool = False
    mesh_axes: tuple[MeshAxis, ...] = ()

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of movement that occur in some case."""
        occurs = np.bincount(np.ravel(self.code), minlength=len(CODES) + 1)
        return [kind for kind, code in CODES.items() if occurs[code]]


#: The pattern of a single plan, or one pattern per case of a family.
AnyPattern: TypeAlias = Pattern | PatternFamily


@dataclass(frozen=True)
class Compute:
    """An operation of a layer; every rank computes it on its own boxes.

    Attributes
    ----------
    samples : int
        Samples of its pass.
    key : hashable
        Equal for steps of a plan that take the same time.
    tensor : TensorRef or None
        For `Op.ACCUMULATE`, the input whose gradient is added.
    present : bool
        In a family of plans, an array: true in the plans with this step.
    part : int
        Index of the micro-batch, or of the pass through the fully connected layers.
    index : int
        Place in the list of steps.
    stage : int
        The stage of the pipeline that computes it.
    """

    phase: Phase
    layer: str
    op: Op
    samples: int
    key: Hashable = field(repr=False, compare=False)
    tensor: TensorRef | None = None
    present: Flags = field(default=True, repr=False, compare=False)
    part: int = 0
    index: int = 0
    stage: int = 0

    @property
    def label(self) -> str:
        return f"{self.layer}.{self.op.value}"


@dataclass(frozen=True)
class Quote:
    """A collective's price on its `way` through a network, computed when its algorithm was chosen:
    seconds in every case, by kind.
    """

    way: object
    seconds: dict[Kind, Floats]


@dataclass(frozen=True)
class Comm:
    """A movement of one tensor between ranks.

    A search prices a family of plans at once. There, `pattern`, `algorithm`, `segments` and `inner`
    have one entry per plan.

    Attributes
    ----------
    pattern : Pattern
        Its kind, whether it adds, and the coordinates of its group.
    source, destination : Layout
        Boxes before and after the movement.
    item_bytes : int
        Size of an element on the wire.
    key : hashable
        Equal for movements of a plan with equal costs.
    algorithm : str
        Name of the algorithm (`hpcpar.schedule.algorithms`); "direct" point to point.
    segments : int
        Pieces that each message of a ring is cut into, so that summing one overlaps the transfer of
        the next.
    inner : int
        Group members per node where halving is hierarchical; else 1.
    quote : Quote or None
        The price that chose the algorithm, for the cost model to reuse.
    root : int
        Position of a reduction's or broadcast's root in the group.
    covers : tuple of str
        For a gradient sum, the layers whose gradients lie side by side in the buffer.
    part : int
        Index of the micro-batch, or of the pass through the fully connected layers.
    index : int
        Place in the list of steps.
    needed_by : int
        Index of the first step that uses the result, or the number of steps (the end). The steps in
        between may overlap this one (`hpcpar.schedule.overlap`).
    stage : int
        The stage of the pipeline that sends.
    receivers : tuple of int
        The stages that wait for the movement.
    """

    phase: Phase
    layer: str
    tensor: TensorRef
    pattern: AnyPattern
    source: Layout
    destination: Layout
    item_bytes: int
    key: Hashable = field(default=None, repr=False, compare=False)
    algorithm: str = "direct"
    segments: int = 1
    inner: int = 1
    quote: Quote | None = field(default=None, repr=False, compare=False)
    root: int = 0
    covers: tuple[str, ...] = ()
    part: int = 0
    index: int = 0
    needed_by: int = 0
    stage: int = 0
    receivers: tuple[int, ...] = (0,)

    @property
    def _single(self) -> Pattern:
        assert isinstance(self.pattern, Pattern)
        return self.pattern

    @cached_property
    def kind(self) -> Kind:
        """The communication pattern in a single plan."""
        kind = self._single.kind
        assert kind is not None
        return kind

    @cached_property
    def reduce(self) -> bool:
        """True where the source holds partial sums, and the destination their totals."""
        return self._single.reduce

    @property
    def sums_samples(self) -> bool:
        """True for sums over samples: of gradients, and of moments in batch normalization."""
        return self.phase is Phase.GRADIENT or self.tensor.role is Role.MOMENTS

    @cached_property
    def group(self) -> Group | None:
        """Members of a collective in a single plan.

        None for point-to-point patterns, whose messages follow from the boxes.
        """
        group = self._single.group
        return group and Group(group.mesh_axes, int(self.source.config.first))

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


class Choice(NamedTuple):
    """How a collective runs; see `Comm`. In a family of plans, arrays with one entry per plan."""

    algorithm: Names
    segments: Ints = 1
    inner: Ints = 1
    quote: Quote | None = None


#: Chooses how a collective runs: a `Choice`, or its first two fields.
Chooser = Callable[[Comm], Choice | tuple[Names, Ints]]


@dataclass(frozen=True)
class Schedule:
    """The steps of an iteration, in order."""

    ranks: int
    steps: tuple[Step, ...]

    @property
    def comms(self) -> tuple[Comm, ...]:
        return tuple(s for s in self.steps if isinstance(s, Comm))
