"""Sizes of the arrays that the two ends of an edge need, on the largest rank, for every case of a
family.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.plan.axis import Axis, all_intervals, tabulate
from hpcpar.plan.config import Flags, Ints
from hpcpar.plan.layout import Layout
from hpcpar.schedule.aliasing import begins_sum, in_place
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.steps import CODES, Kind


@dataclass(frozen=True)
class Ends:
    """Everything that decides the memory of an edge: largest boxes, and codes of movements.

    Attributes
    ----------
    need, own, made : int
        Items of what the consumer needs, of what the producer owns, of the consumer's output.
    around : int
        Items of the box around what a rank needs and owns, in a halo exchange.
    forward, backward : int
        How the tensor and its gradient move.
    """

    need: Ints
    own: Ints
    made: Ints
    around: Ints
    forward: Ints
    backward: Ints

    @classmethod
    def of(cls, e: Edge, made: Layout) -> Ends:
        """Those of an edge, and of what ranks own of the consumer's output."""
        codes = (np.asarray(pattern.code) for pattern in (e.forward, e.backward))
        axes = zip(e.owned.axes, e.needed.axes, strict=True)
        around = math.prod(tabulate(partial(_around, a, b), e.needed.degree(b), np.int64)
                           for a, b in axes)
        return cls(e.needed.largest_items, e.owned.largest_items, made.largest_items, around,
                   *codes)


@lru_cache(maxsize=50_000)
def _around(own: Axis, need: Axis, parts: int) -> int:
    """The widest interval around what a part needs, if it needs anything, and owns."""
    (own0, own1), (need0, need1) = all_intervals(own, parts), all_intervals(need, parts)
    both = np.maximum(own1, need1) - np.minimum(own0, need0)
    return int(np.where(need1 > need0, both, own1 - own0).max())


def where(flag: Flags, yes: Ints, no: Ints) -> Ints:
    """As NumPy's; of a single case without making an array."""
    if isinstance(flag, np.ndarray) and flag.ndim:
        return np.where(flag, yes, no)
    return yes if flag else no


def _lies_inside(e: Edge) -> bool:
    """True where the input lies in the middle of the consumer's output."""
    return bool(e.consumer.inset(tuple(int(n) for n in e.owned.shape[1:])))


def values(ends: Ends, e: Edge, shared: bool) -> Ints:
    """Items of the consumer's input and the producer's output; where several layers read the
    output (`shared`), it lies elsewhere.
    """
    need, own, code, layer = ends.need, ends.own, ends.forward, e.consumer
    still = code == 0
    if shared:
        return where(still, 0, need)
    alone = not layer.is_loss and len(layer.inputs) == 1
    reuse = (np.equal(need, ends.made) | _lies_inside(e)) & (alone and in_place(layer, e.producer))
    halo = code == CODES[Kind.HALO]
    moved = where(halo, where(reuse, own, ends.around), where(reuse, 0, need))
    inside = halo | ((code != CODES[Kind.REDISTRIBUTE]) & (need >= own))
    unmoved = where(reuse & np.equal(need, own), 0, own)
    return where(still, unmoved, where(inside, moved, moved + own))


def gradients(network: Network, ends: Ends, e: Edge) -> Ints:
    """Items of the gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    if len(network.consumers[e.producer.name]) > 1:
        return _one_of_many(network, ends, e)
    again = (np.equal(need, ends.made) | _lies_inside(e)) & e.consumer.in_place
    whole = where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    halo = where(again, own, ends.around)
    apart = where(code == CODES[Kind.HALO], halo, where(view, whole, whole + own))
    return where(part, own, apart)


def _one_of_many(network: Network, ends: Ends, e: Edge) -> Ints:
    """The gradient that one of several readers gives: the first goes where the sum is made, which
    is elsewhere.
    """
    need, own, code = ends.need, ends.own, ends.backward
    still = (code == 0) | (code == CODES[Kind.ALLREDUCE])
    if begins_sum(network, e.producer, e.consumer, e.which):
        return where(still & np.equal(need, own), 0, need)
    return need + where(still, 0, own)
