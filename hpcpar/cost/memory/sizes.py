"""Decides the sizes of the arrays at both ends of an edge, on the largest rank."""

from __future__ import annotations

import math
from functools import lru_cache, partial

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.plan.axis import Axis, all_intervals, tabulate
from hpcpar.plan.config import Flags, Ints
from hpcpar.schedule.aliasing import begins_sum, in_place
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.steps import CODES, Kind


def _around(e: Edge, halo: Flags) -> Ints:
    """Items of the bounding box of a rank's needed and owned boxes, in a halo exchange."""
    if not np.any(halo):
        return 0
    axes = zip(e.owned.axes, e.needed.axes, strict=True)
    return math.prod(tabulate(partial(_hull, a, b), e.needed.degree(b), np.int64) for a, b in axes)


@lru_cache(maxsize=50_000)
def _hull(own: Axis, need: Axis, parts: int) -> int:
    """Length of the longest interval that covers what a part needs (if anything) and owns."""
    (own0, own1), (need0, need1) = all_intervals(own, parts), all_intervals(need, parts)
    both = np.maximum(own1, need1) - np.minimum(own0, need0)
    return int(np.where(need1 > need0, both, own1 - own0).max())


def where(flag: Flags, yes: Ints, no: Ints) -> Ints:
    """Like `numpy.where`, but returns a plain number for a single plan."""
    if isinstance(flag, np.ndarray) and flag.ndim:
        return np.where(flag, yes, no)
    return yes if flag else no


def _lies_inside(e: Edge) -> bool:
    """True if the input lies inside the consumer's output, as in padding."""
    return bool(e.consumer.inset(tuple(int(n) for n in e.owned.shape[1:])))


def values(e: Edge, made: Ints, shared: bool) -> Ints:
    """Items of the consumer's input and the producer's output.

    If several layers read the output (`shared`), only the input counts here. `made` are the items
    of the consumer's output.
    """
    need, own, layer = e.needed.largest_items, e.owned.largest_items, e.consumer
    code = np.asarray(e.forward.code)
    still = code == 0
    if shared:
        return where(still, 0, need)
    single = not layer.is_loss and len(layer.inputs) == 1
    reuse = (np.equal(need, made) | _lies_inside(e)) & (single and in_place(layer, e.producer))
    halo = code == CODES[Kind.HALO]
    moved = where(halo, where(reuse, own, _around(e, halo)), where(reuse, 0, need))
    inside = halo | ((code != CODES[Kind.REDISTRIBUTE]) & (need >= own))
    unmoved = where(reuse & np.equal(need, own), 0, own)
    return where(still, unmoved, where(inside, moved, moved + own))


def gradients(network: Network, e: Edge, made: Ints) -> Ints:
    """Items of the gradients of the consumer's input and of the producer's output."""
    need, own, code = e.needed.largest_items, e.owned.largest_items, np.asarray(e.backward.code)
    if len(network.consumers[e.producer.name]) > 1:
        return _summand(network, e)
    reuse = (np.equal(need, made) | _lies_inside(e)) & e.consumer.in_place
    whole = where(reuse, 0, need)
    gathered = (code == CODES[Kind.ALLGATHER]) & (np.asarray(e.total.code) == 0)
    part = ((code == 0) | gathered) & (need < own)
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    halo = code == CODES[Kind.HALO]
    around = where(reuse, own, _around(e, halo))
    moved = where(halo, around, where(view, whole, whole + own))
    return where(part, own, moved)


def _summand(network: Network, e: Edge) -> Ints:
    """Items of one reader's gradient, where several readers' gradients add up.

    The first gradient goes into the array of the sum, which does not count here.
    """
    need, own, code = e.needed.largest_items, e.owned.largest_items, np.asarray(e.backward.code)
    still = (code == 0) | (code == CODES[Kind.ALLREDUCE])
    if begins_sum(network, e.producer, e.consumer, e.which):
        return where(still & np.equal(need, own), 0, need)
    return need + where(still, 0, own)
