"""The steps of an outline: tasks and movements, with their values in every case of the family."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from hpcpar.network.layers import Layer
from hpcpar.plan.config import Flags, Floats, Ints, Names
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.pattern_family import AnyPattern
from hpcpar.schedule.steps import CODES, Kind, Op, Phase, TensorRef

#: `Move.needed_by` of a movement that no step waits for yet.
NOT_YET = -1
#: Algorithm of a collective that is only priced: the cheapest, whichever it is.
CHEAPEST = "cheapest"
#: Codes that leave no choice of algorithm: no movement, and point-to-point messages.
DIRECT = (0, CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE])
IS_DIRECT = np.array([code in DIRECT for code in range(len(CODES) + 1)])


@dataclass(eq=False)
class Task:
    """Local compute on `batch` samples, in the cases where it is `present`; see `steps.Compute`."""

    phase: Phase
    layer: Layer
    op: Op
    batch: int
    present: Flags = True
    part: int = 0
    tensor: TensorRef | None = None


@dataclass(frozen=True)
class Quote:
    """A collective's price by a network `model`, computed when its algorithm was chosen: seconds in
    every case, by kind.
    """

    model: object
    seconds: dict[Kind, Floats]


@dataclass(eq=False)
class Move:
    """A movement of one tensor between ranks; see `steps.Comm`.

    Attributes
    ----------
    key : tuple
        Equal for moves with equal costs.
    algorithm, segments : array
        One entry per case.
    inner : array of int
        Group members per node, for halving.
    quote : Quote or None
        The chooser's price, for the cost model to reuse.
    """

    phase: Phase
    layer: str
    tensor: TensorRef
    source: Layout
    destination: Layout
    pattern: AnyPattern
    item_bytes: int
    key: Hashable
    algorithm: Names = "direct"
    segments: Ints = 1
    inner: Ints = 1
    quote: Quote | None = None
    needed_by: int = NOT_YET
    part: int = 0
    root: int = 0
    covers: tuple[str, ...] = ()

    @property
    def present(self) -> Flags:
        return np.asarray(self.pattern.code) != 0


#: Chooses a collective's algorithm and segments in every case.
Chooser = Callable[[Move], tuple[Names, Ints]]


@dataclass(eq=False)
class Outline:
    """Steps that occur in some case of a family of plans, in order."""

    plan: Plan
    edges: Edges
    steps: list[Task | Move] = field(default_factory=list)
