"""Sizes of the arrays that the two ends of an edge need, on the largest rank, for every case of a family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Loss
from hpcpar.plan.layout import Layout
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.sharing import begins_sum, in_place, passes_gradient
from hpcpar.schedule.steps import CODES, Kind

#: Codes of movements after which the gradient of a tensor is a part of that of its reader's input, or holds it.
PASSES_ON = (0, CODES[Kind.HALO], CODES[Kind.ALLREDUCE])


@dataclass(frozen=True)
class Ends:
    """What decides the memory of an edge: largest boxes, and codes of movements.

    Attributes
    ----------
    need, own, made : int
        Items of what the consumer needs, of what the producer owns, of the consumer's output.
    forward, backward : int
        How the tensor and its gradient move.
    """

    need: Any
    own: Any
    made: Any
    forward: Any
    backward: Any

    @classmethod
    def of(cls, e: Edge, made: Layout) -> Ends:
        """Those of an edge, and of what ranks own of the consumer's output."""
        codes = (np.asarray(pattern.code) for pattern in (e.forward, e.backward))
        return cls(e.needed.largest_items, e.owned.largest_items, made.largest_items, *codes)


@dataclass(frozen=True)
class Arrays:
    """Items of the arrays of an edge.

    Attributes
    ----------
    both : int
        Of one array for the consumer's end and the producer's.
    reader, owner : int
        Of arrays of their own.
    """

    both: Any
    reader: Any
    owner: Any

    @property
    def items(self) -> Any:
        return self.both + self.reader + self.owner


def values(ends: Ends, e: Edge, shared: bool) -> Arrays:
    """The consumer's input and the producer's output; the latter is elsewhere where several layers read it (`shared`)."""
    need, own, code, layer = ends.need, ends.own, ends.forward, e.consumer
    still = code == 0
    if shared:
        return Arrays(0, np.where(still, 0, need), 0)
    reuse = np.equal(need, ends.made) & (not isinstance(layer, Loss) and in_place(layer, e.producer) and len(layer.inputs) == 1)
    halo = code == CODES[Kind.HALO]
    inside = halo | ((code != CODES[Kind.REDISTRIBUTE]) & (need >= own))
    moved = np.where(halo, np.maximum(need, own), np.where(reuse, 0, need))
    both = np.where(still, np.where(reuse & np.equal(need, own), 0, own), np.where(inside, moved, 0))
    apart = ~still & ~inside
    return Arrays(both, np.where(apart, moved, 0), np.where(apart, own, 0))


def gradients(network: Network, ends: Ends, e: Edge) -> Arrays:
    """The gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    if len(network.consumers[e.producer.name]) > 1:
        return _one_of_many(network, ends, e)
    again = np.equal(need, ends.made) & passes_gradient(e.consumer)
    whole = np.where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    halo = code == CODES[Kind.HALO]
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    both = np.where(part, own, np.where(halo, np.maximum(need, own), np.where(view, whole, 0)))
    apart = ~(part | halo | view)
    return Arrays(both, np.where(apart, whole, 0), np.where(apart, own, 0))


def _one_of_many(network: Network, ends: Ends, e: Edge) -> Arrays:
    """The gradient that one of several readers gives: the first goes where the sum is made, which is elsewhere."""
    need, own, code = ends.need, ends.own, ends.backward
    still = (code == 0) | (code == CODES[Kind.ALLREDUCE])
    if begins_sum(network, e.producer, e.consumer, e.which):
        return Arrays(0, np.where(still & np.equal(need, own), 0, need), 0)
    return Arrays(0, need, np.where(still, 0, own))
