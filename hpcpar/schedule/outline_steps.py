"""What an outline consists of: tasks of ranks, and movements of tensors, with what each is in every
case of a family of plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.network.layers import Layer
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.pattern import Flags, Pattern
from hpcpar.schedule.steps import CODES, Kind, Op, Phase

#: Of a movement whose result nobody has asked for.
NOT_YET = -1
#: The algorithm of a collective that is only priced: the cheapest, whichever it is.
CHEAPEST = "cheapest"
#: Codes of what has no algorithm to choose: nothing, and messages from rank to rank.
DIRECT = (0, *(CODES[kind] for kind in (Kind.HALO, Kind.REDISTRIBUTE, Kind.REDUCE, Kind.BROADCAST)))
IS_DIRECT = np.array([code in DIRECT for code in range(len(CODES) + 1)])


@dataclass(eq=False)
class Task:
    """A rank's own work on `batch` samples, where `present`; see `steps.Compute`."""

    phase: Phase
    layer: Layer
    op: Op
    batch: Ints
    present: Flags = True
    part: int = 0
    tensor: str = ""


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
    quote
        What the chooser found out about the price, for the cost model to use again.
    """

    phase: Phase
    layer: str
    tensor: str
    holder: Layout
    wanter: Layout
    pattern: Pattern
    item_bytes: int
    key: Any
    algorithm: Any = "direct"
    segments: Any = 1
    quote: Any = None
    needed_by: int = NOT_YET
    part: int = 0
    root: int = 0
    covers: tuple[str, ...] = ()

    @property
    def present(self) -> Flags:
        return np.asarray(self.pattern.code) != 0


#: Gives a collective its algorithm and segments, for every case.
Chooser = Callable[[Move], tuple[Any, Any]]


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
