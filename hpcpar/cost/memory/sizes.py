"""Sizes of the arrays that the two ends of an edge need, on the largest rank, for every case of a
family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcpar.network.graph import Network
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
    forward, backward : int
        How the tensor and its gradient move.
    """

    need: Ints
    own: Ints
    made: Ints
    forward: Ints
    backward: Ints

    @classmethod
    def of(cls, e: Edge, made: Layout) -> Ends:
        """Those of an edge, and of what ranks own of the consumer's output."""
        codes = (np.asarray(pattern.code) for pattern in (e.forward, e.backward))
        return cls(e.needed.largest_items, e.owned.largest_items, made.largest_items, *codes)


def where(flag: Flags, yes: Ints, no: Ints) -> Ints:
    """As NumPy's; of a single case without making an array."""
    if isinstance(flag, np.ndarray) and flag.ndim:
        return np.where(flag, yes, no)
    return yes if flag else no


def values(ends: Ends, e: Edge, shared: bool) -> Ints:
    """Items of the consumer's input and the producer's output; where several layers read the
    output (`shared`), it lies elsewhere.
    """
    need, own, code, layer = ends.need, ends.own, ends.forward, e.consumer
    still = code == 0
    if shared:
        return where(still, 0, need)
    alone = not layer.is_loss and len(layer.inputs) == 1
    reuse = (np.equal(need, ends.made) | layer.is_view) & (alone and in_place(layer, e.producer))
    halo = code == CODES[Kind.HALO]
    moved = where(halo, np.maximum(need, own), where(reuse, 0, need))
    inside = halo | ((code != CODES[Kind.REDISTRIBUTE]) & (need >= own))
    unmoved = where(reuse & np.equal(need, own), 0, own)
    return where(still, unmoved, where(inside, moved, moved + own))


def gradients(network: Network, ends: Ends, e: Edge) -> Ints:
    """Items of the gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    if len(network.consumers[e.producer.name]) > 1:
        return _one_of_many(network, ends, e)
    again = (np.equal(need, ends.made) | e.consumer.is_view) & e.consumer.in_place
    whole = where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    apart = where(code == CODES[Kind.HALO], np.maximum(need, own), where(view, whole, whole + own))
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
