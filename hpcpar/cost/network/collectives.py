"""Seconds of collectives in the alpha-beta model, and messages and items of the busiest member.

Consistent with `hpcpar.schedule.collective_algorithms`: the same rounds, the same bytes. With p
members, n bytes, latency alpha (s) and inverse bandwidth beta (s/byte) of the level that the group
needs, gamma (s/byte) the cost of adding, s segments:

ring allreduce
    2 (p - 1) (s alpha + n / p beta), and the sums of its first half
doubling allreduce
    r (alpha + n beta + n gamma), r = log2 p (beyond a power of two: 2 rounds more)
halving allreduce (Rabenseifner)
    2 (ceil(log2 p) + w) alpha + 2 n (p - 1) / p beta + n (p - 1) / p gamma, w rounds whose parts
    pass the end of the buffer, in two messages (only if p is no power of two)
ring allgather, reduce-scatter
    (p - 1) (s alpha + n / p beta), and the sums of a reduce-scatter
halving allgather, reduce-scatter
    ceil(log2 p) alpha + n (p - 1) / p beta, and the sums of a reduce-scatter
halving with m members in each node (hierarchical)
    a reduce-scatter of n in the node, the collective of n / m between p / m nodes, an allgather of
    n in the node, as far as the collective has these parts; all members of a node at once
reduce, broadcast, and the sums of a reduce
    direct (p - 1) (alpha + n beta); along a chain, ring (p - 2 + s) (alpha + n / s beta); down a
    tree, doubling ceil(log2 p) (alpha + n beta)
mpi
    the best of these
the accounting of Gholami et al.
    ceil(log2 p) alpha + n (p - 1) / p beta; twice that for an allreduce

Where a machine was measured to take other times, those count (`hpcpar.machine.model.Factors`).
The rounds of doubling and halving pay for the level that their distance crosses, a ring for the
slowest of its neighbours. Where a reduction, a broadcast, or doubling beyond a power of two spans
nodes, its rounds are walked from member to member (`Route.walked_s`). All arguments may be arrays
with an entry for each case of a family of plans.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

import numpy as np

from hpcpar.cost.network.contention import Links, doublings
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.collective_algorithms import ALGORITHMS
from hpcpar.schedule.steps import Algorithm, Kind


class Routed(Protocol):
    """The links of a group: `far` joins the neighbours of a ring, `hop` partners at 2^doubling, or
    `around` the group every member and the one 2^doubling further on.

    `factor` is measured time over modelled time; None where nothing was measured. `split` are the
    routes inside nodes and between them; None where no group has runs of members in nodes.
    """

    @property
    def far(self) -> Links: ...

    def hop(self, doubling: int, around: bool = False) -> Links: ...

    @property
    def split(self) -> tuple[Part, Part] | None: ...

    def factor(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers) -> Floats | None: ...

    def walked_s(self, kind: Kind, algorithm: Algorithm, n_bytes: Numbers, segments: Ints,
                 add_s_per_byte: float) -> Floats: ...


class Part(Routed, Protocol):
    """A route with its number of members."""

    @property
    def p(self) -> Ints: ...


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
    if algorithm is Algorithm.HALVING and route.split is not None:
        return _hierarchical_s(kind, n_bytes, *route.split, add_s_per_byte)
    seconds = _model_s(kind, algorithm, p, n_bytes, segments, route, add_s_per_byte)
    factor = route.factor(kind, algorithm, n_bytes)
    return seconds if factor is None else seconds * factor


def _hierarchical_s(kind: Kind, n_bytes: Numbers, inside: Part, between: Part,
                    add_s_per_byte: float) -> Floats:
    """Seconds of halving inside nodes and between them."""
    def phase_s(kind: Kind, way: Part, n: Numbers) -> Floats:
        return collective_s(kind, Algorithm.HALVING, way.p, n, 1, way, add_s_per_byte)

    seconds = phase_s(kind, between, n_bytes / inside.p)
    for phase in (Kind.REDUCE_SCATTER, Kind.ALLGATHER):
        if kind in (phase, Kind.ALLREDUCE):
            seconds = seconds + phase_s(phase, inside, n_bytes)
    if kind is Kind.ALLREDUCE:
        seconds = seconds + 2 * _wraps_s(inside.p, n_bytes, inside)
    return seconds


def _model_s(kind: Kind, algorithm: Algorithm, p: Ints, n_bytes: Numbers, segments: Ints,
             route: Routed, add_s_per_byte: float) -> Floats:
    """Seconds by the formulas above."""
    seconds: Floats
    if algorithm is Algorithm.MPI:
        every = [_model_s(kind, name, p, n_bytes, segments, route, add_s_per_byte)
                 for name in ALGORITHMS[kind]]
        return reduce(np.minimum, every)
    if kind in (Kind.REDUCE, Kind.BROADCAST):
        add = add_s_per_byte if kind is Kind.REDUCE else 0.0
        walked = route.walked_s(kind, algorithm, n_bytes, segments, add)
        alike = _rooted_s(algorithm, p, n_bytes, segments, route, add)
        seconds = np.where(np.isnan(walked), alike, walked)
    elif algorithm is Algorithm.RING:
        seconds = _ring_s(kind, p, n_bytes, segments, route.far, add_s_per_byte)
    elif algorithm is Algorithm.DOUBLING:
        walked = route.walked_s(kind, algorithm, n_bytes, 1, 0.0)
        seconds = np.where(np.isnan(walked), _doubling_s(p, n_bytes, route), walked)
        seconds = seconds + summing_rounds(p) * n_bytes * add_s_per_byte
    else:
        seconds = _halving_s(p, n_bytes, route)
        if kind is Kind.ALLREDUCE:
            seconds = 2 * (seconds + _wraps_s(p, n_bytes, route))
        if kind is not Kind.ALLGATHER:
            seconds = seconds + n_bytes * (p - 1) / p * add_s_per_byte
    return np.where(np.equal(p, 1) | np.equal(n_bytes, 0), 0.0, seconds)


def _ring_s(kind: Kind, p: Ints, n_bytes: Numbers, segments: Ints, links: Links,
            add_s_per_byte: float) -> Floats:
    piece = n_bytes / (p * segments)
    link, add = links.message_s(piece), add_s_per_byte * piece
    pieces = (p - 1) * segments
    if kind is Kind.ALLGATHER:
        return pieces * link
    # segment j of a round needs the sum of segment j of the round before; with several segments,
    # one is sent while another is added, and an allreduce gathers the first while the last is added
    if kind is Kind.REDUCE_SCATTER:
        one_by_one = pieces * (link + add)
        pipelined = pieces * np.maximum(link, add) + np.minimum(link, add)
    else:
        one_by_one = pieces * (2 * link + add)
        pipelined = np.maximum(2 * pieces * link, pieces * add + (pieces - segments + 2) * link)
    return np.where(np.equal(segments, 1), one_by_one, pipelined)


def _rooted_s(algorithm: Algorithm, p: Ints, n_bytes: Numbers, segments: Ints, route: Routed,
              add_s_per_byte: float) -> Floats:
    """Seconds of a reduction or a broadcast."""
    chain, tree = algorithm is Algorithm.RING, algorithm is Algorithm.DOUBLING
    segments = segments if chain else 1
    piece = n_bytes / segments
    messages = log2_ceil(p) if tree else p - 2 + segments if chain else p - 1
    return messages * (route.far.message_s(piece) + piece * add_s_per_byte)


def _doubling_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    total: Floats = 0.0
    power = log2_floor(p)
    for r in range(int(np.max(power))):
        total = total + np.where(r < power, route.hop(r).message_s(n_bytes), 0.0)
    # beyond a power of two, the extra ranks fold into their neighbours first and unfold last
    return total + np.where(np.greater(p, 1 << power), 2 * route.hop(0).message_s(n_bytes), 0.0)


def _halving_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    """Seconds of the messages of an allgather or a reduce-scatter."""
    total: Floats = 0.0
    odd = p // (p & -p)
    twos = log2_floor(p // odd)
    for r in range(doublings(p)):
        partners = np.less(r, twos)
        # around the odd rest, blocks double from one on
        distance = 1 << np.maximum(0, r - twos)
        blocks = np.where(partners, p >> (r + 1), np.clip(odd - distance, 0, distance))
        sent = n_bytes / p * blocks
        seconds: Floats = 0.0
        if np.any(partners):
            seconds = route.hop(r).message_s(sent)
        if not np.all(partners):
            seconds = np.where(partners, seconds, route.hop(r, True).message_s(sent))
        total = total + np.where(blocks > 0, seconds, 0.0)
    return total


def _wraps_s(p: Ints, n_bytes: Numbers, route: Routed) -> Floats:
    """Second messages of the rounds whose parts pass the end of an allreduce's buffer."""
    return _wraps(p) * route.far.latency_s(n_bytes / p)


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


def halving_rounds(p: Ints, inner: Ints = 1) -> IntArray:
    """Rounds of an allgather or reduce-scatter by halving."""
    return log2_ceil(inner) + log2_ceil(p // inner)


def _wraps(p: Ints) -> IntArray:
    """Rounds around the odd rest of p members whose parts pass the end of an allreduce's buffer, at
    the member with most: all but those of a single part.
    """
    odd = p // (p & -p)
    single = 1 + np.equal(odd, (1 << log2_floor(odd)) + 1)
    return np.maximum(0, log2_ceil(odd) - single)


def sent(kind: Kind, algorithm: Algorithm, p: Ints, items: Ints, least: Ints, segments: Ints,
         inner: Ints = 1) -> tuple[Ints, Ints]:
    """Messages and items of the member that sends most.

    Exact for blocks of equal size, and for rings with any blocks.

    Parameters
    ----------
    items : int
        Allreduce, reduce and broadcast: the buffer; allgather and reduce-scatter: all members'
        blocks together.
    least : int
        The smallest block of an allgather or reduce-scatter.
    inner : int
        Members in each node, for halving.
    """
    # the library's collective counts as one message with the member's own contribution
    if algorithm is Algorithm.MPI:
        messages: Ints = np.minimum(1, p - 1)
        return messages, np.where(np.equal(p, 1), 0, items)
    if kind in (Kind.REDUCE, Kind.BROADCAST):
        count: Ints = np.minimum(1, p - 1)
        if algorithm is Algorithm.RING:
            return count * np.minimum(segments, items), count * items
        if kind is Kind.BROADCAST:
            count = p - 1 if algorithm is Algorithm.DIRECT else log2_ceil(p)
        return count, count * items
    if algorithm is Algorithm.DOUBLING:
        messages = doubling_rounds(p) - np.greater(p, np.left_shift(1, log2_floor(p)))
        return messages, messages * items
    if algorithm is Algorithm.HALVING:
        rounds = halving_rounds(p, inner)
        if kind is not Kind.ALLREDUCE:
            return rounds, items - least
        wraps = _wraps(inner) + _wraps(p // inner)
        return 2 * rounds + wraps, 2 * items - 2 * (items // p)
    if kind is Kind.ALLREDUCE:
        pieces = np.minimum(segments, np.maximum(1, items // p))
        messages = np.where(np.less(items, p), 2 * items - 2 * items // p, 2 * (p - 1) * pieces)
        return messages, np.where(np.equal(p, 1), 0, 2 * items - 2 * items // p)
    return (p - 1) * np.minimum(segments, np.maximum(1, items // p)), items - least
