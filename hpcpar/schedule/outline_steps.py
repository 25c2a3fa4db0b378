"""The steps of an outline: tasks and movements, with their values in every case of a family."""

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
#: Algorithm of a collective that is only priced: the cheapest one, unnamed.
CHEAPEST = "cheapest"
#: Codes without a choice of algorithm: no movement, and point-to-point messages.
DIRECT = (0, CODES[Kind.HALO], CODES[Kind.REDISTRIBUTE])
IS_DIRECT = np.array([code in DIRECT for code in range(len(CODES) + 1)])


@dataclass(eq=False)
class Task:
    """A rank's own work on `batch` samples, where `present`; see `steps.Compute`."""

    phase: Phase
    layer: Layer
    op: Op
    batch: int
    present: Flags = True
    part: int = 0
    tensor: TensorRef | None = None


@dataclass(frozen=True)
class Quote:
    """Seconds of a collective, found while its algorithm was chosen.

    Attributes
    ----------
    model : object
        The network model that gave them.
    seconds : dict
        By kind, in every case.
    """

    model: object
    seconds: dict[Kind, Floats]


@dataclass(eq=False)
class Move:
    """A movement of one tensor between ranks; see `steps.Comm`.

    Attributes
    ----------
    key : tuple
        Equal for moves that cost alike.
    algorithm : array of str
        Name for each case.
    segments : array of int
    inner : array of int
        Members of a group in each node, for halving.
    quote : Quote or None
        Seconds that the chooser found, for the cost model to reuse.
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


#: Chooses algorithm and segments of a collective in every case.
Chooser = Callable[[Move], tuple[Names, Ints]]


@dataclass(eq=False)
class Outline:
    """Steps that the cases of a family of plans may have, in order.

    Attributes
    ----------
    edges : Edges
        What the steps were made from.
    """

    plan: Plan
    edges: Edges
    steps: list[Task | Move] = field(default_factory=list)
