"""The steps of an iteration: the list that the simulator prices and the executor runs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hpcpar.plan.boxes import Box
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout


class Phase(str, Enum):
    """Part of an iteration."""

    FORWARD = "forward"
    LOSS = "loss"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    GRADIENT = "gradient"
    UPDATE = "update"


#: Those that every micro-batch has.
PASSES = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)


class Kind(str, Enum):
    """Pattern of a communication step."""

    HALO = "halo"
    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLREDUCE = "allreduce"
    REDISTRIBUTE = "redistribute"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


#: Kinds as small numbers, for large arrays of them; 0 stands for no communication.
CODES = {kind: np.int8(code) for code, kind in enumerate(Kind, 1)}


class Op(str, Enum):
    """What a compute step computes."""

    STATISTICS = "statistics"
    FORWARD = "forward"
    INTERIOR = "interior"
    BOUNDARY = "boundary"
    BACKWARD = "backward"
    BACKWARD_WEIGHT = "backward_weight"
    ACCUMULATE = "accumulate"
    UPDATE = "update"


@dataclass(frozen=True)
class Group:
    """Ranks that communicate with each other: those that differ in the given digits only, counted
    from rank `first`.
    """

    digits: tuple[Digit, ...]
    first: int = 0

    @property
    def size(self) -> int:
        out = 1
        for d in self.digits:
            out *= d.size
        return out

    def index(self, rank: int) -> int:
        """Position of `rank` in its group."""
        out = 0
        for d in sorted(self.digits, key=lambda d: -d.stride):
            out = out * int(d.size) + int(d.of(rank - self.first))
        return out

    def members(self, rank: int) -> tuple[int, ...]:
        """The group that `rank` belongs to, by position."""
        base = rank - sum(d.of(rank - self.first) * d.stride for d in self.digits)
        ordered = sorted(self.digits, key=lambda d: -d.stride)
        places = itertools.product(*(range(d.size) for d in ordered))
        return tuple(base + sum(i * d.stride for i, d in zip(at, ordered, strict=True))
                     for at in places)


@dataclass(frozen=True)
class Compute:
    """A rank's own work; every rank works on its own boxes.

    Attributes
    ----------
    part : int
        The micro-batch, or the turn, that it works on.
    tensor : str
        Of an accumulation: the input whose gradient is added.
    """

    index: int
    phase: Phase
    layer: str
    op: Op
    part: int = 0
    tensor: str = ""

    @property
    def label(self) -> str:
        return f"{self.layer}.{self.op.value}"


@dataclass(frozen=True)
class Comm:
    """A movement of one tensor between ranks.

    Attributes
    ----------
    holder, wanter : Layout
        Boxes before and after. With `reduce`, holders' values are partial sums and wanters get
        totals.
    group : Group or None
        Who takes part in a collective; None for point-to-point patterns (halo, redistribute), where
        boxes tell.
    algorithm : str
        ``direct`` (point to point), ``ring``, ``doubling``, ``bruck`` or ``mpi`` (the library's
        own).
    segments : int
        Pieces that each message of a ring is cut into, so that summing one overlaps the transfer of
        the next.
    item_bytes : int
        Size of an element on the wire.
    needed_by : int
        Index of the first step that uses the result; what lies between may overlap.
    part : int
        The micro-batch, or the turn, that it moves.
    root : int
        Position in the group of the one that a reduction ends at or a broadcast begins at.
    covers : tuple of str
        Of a sum of gradients: the layers whose gradients lie side by side in it.
    """

    index: int
    phase: Phase
    layer: str
    tensor: str
    kind: Kind
    holder: Layout
    wanter: Layout
    reduce: bool
    group: Group | None
    algorithm: str
    segments: int
    item_bytes: int
    needed_by: int
    part: int = 0
    root: int = 0
    covers: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.layer}.{self.phase.value}.{self.kind.value}"

    def held(self, rank: int) -> Box:
        return self.holder.box(rank)

    def wanted(self, rank: int) -> Box:
        return self.wanter.box(rank)

    def concerns(self, rank: int) -> bool:
        """True where `rank` holds or wants some of the tensor."""
        return self.holder.holds(rank) or self.wanter.holds(rank)

    @property
    def between(self) -> bool:
        """True where the tensor goes from some ranks to others."""
        a, b = self.holder.config, self.wanter.config
        return bool(a.first != b.first or a.ranks != b.ranks)


Step = Compute | Comm


@dataclass(frozen=True)
class Schedule:
    """The frozen steps of one iteration on `ranks` ranks."""

    ranks: int
    steps: tuple[Step, ...]

    @property
    def comms(self) -> tuple[Comm, ...]:
        return tuple(s for s in self.steps if isinstance(s, Comm))
