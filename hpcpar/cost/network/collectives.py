"""Seconds of collectives in the alpha-beta model, and messages and items of the busiest member.

Consistent with `hpcpar.schedule.collective_algorithms`: the same rounds, the same bytes. With p
members, n bytes, latency alpha (s) and inverse bandwidth beta (s/byte) of the level that the group
needs, gamma (s/byte) the cost of adding, s segments:

ring allreduce
    2 (p - 1) (s alpha + n / p beta), and the sums of its first half
doubling allreduce
    r (alpha + n beta + n gamma), r = log2 p (beyond a power of two: 2 rounds more)
ring allgather, reduce-scatter
    (p - 1) (s alpha + n / p beta), and the sums of a reduce-scatter
bruck allgather, reduce-scatter
    ceil(log2 p) alpha + n (p - 1) / p beta, and the sums of a reduce-scatter
reduce, broadcast (direct)
    (p - 1) (alpha + n beta): one member's link, and the sums of a reduce
mpi
    the better of ring and tree (doubling, bruck)
the accounting of Gholami et al.
    ceil(log2 p) alpha + n (p - 1) / p beta; twice that for an allreduce

Where a machine was measured to take other times, those count (`hpcpar.machine.model.Factors`).
The rounds of doubling and Bruck pay for the level that their distance crosses, a ring for the
slowest of its neighbours. All arguments may be arrays with an entry for each case of a family of
plans.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hpcpar.cost.network.contention import Links, doublings
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.collective_algorithms import ALGORITHMS
from hpcpar.schedule.steps import Algorithm, Kind


class Routed(Protocol):
    """The links of a group: `far` joins the neighbours of a ring, `hop` partners at 2^doubling.

    `factor` is measured time over modelled time; None where nothing was measured.
    """

    @property
    def far(self) -> Links: ...

    def hop(self, doubling: int) -> Links: ...

    def factor(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers) -> Floats | None: ...


def collective_s(kind: Kind, algorithm: Algorithm, p: Ints, n_bytes: Numbers, segments: Ints,
                 route: Routed, add_s_per_byte: float = 0.0) -> Floats:
    """Seconds of a collective.

    Parameters
    ----------
    p : int
        Members.
    n_bytes : float
        Allgather and reduce-scatter: all members' blocks together; else the buffer.
    segments : int
        Pieces of a ring's messages.
    route : Routed
        The links that the group's messages cross.
    add_s_per_byte : float
        Cost of adding received bytes; a ring of several segments hides it behind the transfer of
        the next segment.
    """
    seconds = _model_s(kind, algorithm, p, n_bytes, segments, route, add_s_per_byte)
    factor = route.factor(kind, algorithm, n_bytes)
    return seconds if factor is None else seconds * factor


def _model_s(kind: Kind, algorithm: Algorithm, p: Ints, n_bytes: Numbers, segments: Ints,
             route: Routed, add_s_per_byte: float) -> Floats:
    """Seconds by the formulas above."""
    if algorithm is Algorithm.MPI:
        every = [_model_s(kind, name, p, n_bytes, segments, route, add_s_per_byte)
                 for name in ALGORITHMS[kind]]
        return np.minimum(every[0], every[1])
    if algorithm is Algorithm.RING:
        seconds = _ring_s(kind, p, n_bytes, segments, route.far, add_s_per_byte)
    elif algorithm is Algorithm.DOUBLING:
        seconds = _doubling_s(p, n_bytes, route) + summing_rounds(p) * n_bytes * add_s_per_byte
    elif algorithm is Algorithm.BRUCK:
        seconds = _bruck_s(p, n_bytes, route)
        if kind is Kind.REDUCE_SCATTER:
            seconds = seconds + n_bytes * (p - 1) / p * add_s_per_byte
    else:  # direct: reduce, broadcast
        seconds = (p - 1) * (route.far.message_s(n_bytes)
                             + (n_bytes * add_s_per_byte if kind is Kind.REDUCE else 0.0))
    return np.where(np.equal(p, 1) | np.equal(n_bytes, 0), 0.0, seconds)


def _ring_s(kind: Kind, p: Ints, n_bytes: Numbers, segments: Ints, links: Links,
            add_s_per_byte: float) -> Floats:
    piece = n_bytes / (p * segments)
    link, add = links.message_s(piece), add_s_per_byte * piece
    plain = (p - 1) * segments * link
    if kind is Kind.ALLGATHER:
        return plain
    # segment j of a round needs the sum of segment j of the round before; with several segments,
    # one is sent while another is added
    round_s = np.maximum(segments * np.maximum(link, add), link + add)
    pipelined = (p - 1) * round_s + np.minimum(link, add)
    summed = np.where(np.equal(segments, 1), (p - 1) * (link + add), pipelined)
    return summed + plain if kind is Kind.ALLREDUCE else summed


def _doubling_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    total: Floats = 0.0
    power = log2_floor(p)
    for r in range(int(np.max(power))):
        total = total + np.where(r < power, route.hop(r).message_s(n_bytes), 0.0)
    # beyond a power of two, the extra ranks fold into their neighbours first and unfold last
    return total + np.where(np.greater(p, 1 << power), 2 * route.hop(0).message_s(n_bytes), 0.0)


def _bruck_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    total: Floats = 0.0
    for r in range(doublings(p)):
        blocks = np.maximum(0, np.minimum(1 << r, p - (1 << r)))
        total = total + np.where(blocks > 0, route.hop(r).message_s(n_bytes / p * blocks), 0.0)
    return total


def log2_floor(p: Ints) -> IntArray:
    """log2 p, rounded down."""
    return np.frexp(p)[1].astype(np.int64) - 1


def log2_ceil(p: Ints) -> IntArray:
    """log2 p, rounded up."""
    power = log2_floor(p)
    return power + np.greater(p, np.left_shift(1, power))


def doubling_rounds(p: Ints) -> IntArray:
    """Rounds on the critical path of `doubling_allreduce`."""
    power = log2_floor(p)
    return power + 2 * np.greater(p, np.left_shift(1, power))


def summing_rounds(p: Ints) -> IntArray:
    """Rounds of `doubling_allreduce` that add."""
    return log2_ceil(p)


def paper_s(kind: Kind, p: Ints, n_bytes: Numbers, links: Links) -> Floats:
    """The accounting of Gholami et al. (Eq 3 to 9).

    ceil(log2 p) alpha + (p - 1) / p n beta; twice that for an allreduce.
    """
    once = links.alpha_s * log2_ceil(p) + links.beta_s_per_byte * (p - 1) / p * n_bytes
    return 2 * once if kind is Kind.ALLREDUCE else once


def sent(kind: Kind, algorithm: Algorithm, p: Ints, items: Ints, least: Ints, segments: Ints
         ) -> tuple[Ints, Ints]:
    """Messages and items of the member that sends most.

    Exact for blocks of equal size, and for rings with any blocks.

    Parameters
    ----------
    items : int
        Allreduce, reduce and broadcast: the buffer; allgather and reduce-scatter: all members'
        blocks together.
    least : int
        The smallest block of an allgather or reduce-scatter.
    """
    # the library's collective counts as one message with the member's own contribution
    if algorithm is Algorithm.MPI:
        messages: Ints = np.minimum(1, p - 1)
        return messages, np.where(np.equal(p, 1), 0, items)
    if kind in (Kind.REDUCE, Kind.BROADCAST):
        count: Ints = np.minimum(1, p - 1) if kind is Kind.REDUCE else p - 1
        return count, count * items
    if algorithm is Algorithm.DOUBLING:
        messages = doubling_rounds(p) - np.greater(p, np.left_shift(1, log2_floor(p)))
        return messages, messages * items
    if algorithm is Algorithm.BRUCK:
        return log2_ceil(p), items - least
    if kind is Kind.ALLREDUCE:
        pieces = np.minimum(segments, np.maximum(1, items // p))
        messages = np.where(np.less(items, p), 2 * items - 2 * items // p, 2 * (p - 1) * pieces)
        return messages, np.where(np.equal(p, 1), 0, 2 * items - 2 * items // p)
    return (p - 1) * np.minimum(segments, np.maximum(1, items // p)), items - least
