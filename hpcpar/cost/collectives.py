"""Seconds of the collectives by algorithm, in the alpha-beta model, and what a member of them sends.

Consistent with `hpcpar.schedule.rounds`: the same rounds, the same bytes. With p members, n bytes, latency alpha (s) and inverse
bandwidth beta (s/byte) of the level that the group needs, gamma (s/byte) the cost of adding, s segments:

==============================  =============================================================================
ring allreduce                  2 (p - 1) (s alpha + n / p beta), and the sums of its first half
doubling allreduce              r (alpha + n beta + n gamma), r = log2 p (beyond a power of two: 2 rounds more)
ring allgather, reduce-scatter  (p - 1) (s alpha + n / p beta), and the sums of a reduce-scatter
bruck allgather, reduce-scatter ceil(log2 p) alpha + n (p - 1) / p beta, and the sums of a reduce-scatter
mpi                             the better of ring and tree (doubling, bruck)
the integrated paper's          ceil(log2 p) alpha + n (p - 1) / p beta; twice that for an allreduce
==============================  =============================================================================
"""

from __future__ import annotations

import math

from hpcpar.machine.model import Level
from hpcpar.schedule.rounds import ALGORITHMS
from hpcpar.schedule.steps import Kind


def collective_s(kind: Kind, algorithm: str, p: int, n_bytes: float, segments: int, level: Level, add_s_per_byte: float = 0.0) -> float:
    """Seconds of a collective.

    Parameters
    ----------
    p : int
        Members.
    n_bytes : float
        Allreduce: the buffer; allgather and reduce-scatter: all members' blocks together.
    segments : int
        Pieces of a ring's messages.
    level : Level
        The links that the group's messages cross.
    add_s_per_byte : float
        Cost of adding received bytes; a ring of several segments hides it behind the transfer of the next segment.
    """
    if p == 1 or n_bytes == 0:
        return 0.0
    if algorithm == "mpi":
        return min(collective_s(kind, name, p, n_bytes, segments, level, add_s_per_byte) for name in ALGORITHMS[kind])
    if algorithm == "ring":
        return _ring_s(kind, p, n_bytes, segments, level, add_s_per_byte)
    if algorithm == "doubling":
        return doubling_rounds(p) * level.message_s(n_bytes) + summing_rounds(p) * n_bytes * add_s_per_byte
    rounds = math.ceil(math.log2(p))
    moved = n_bytes * (p - 1) / p
    latency = sum(level.latency_s(n_bytes / p * min(1 << r, p - (1 << r))) for r in range(rounds))
    return latency + moved * (level.beta_s_per_byte + (add_s_per_byte if kind is Kind.REDUCE_SCATTER else 0.0))


def _ring_s(kind: Kind, p: int, n_bytes: float, segments: int, level: Level, add_s_per_byte: float) -> float:
    piece = n_bytes / p / segments
    link, add = level.message_s(piece), add_s_per_byte * piece
    plain = (p - 1) * segments * link
    if kind is Kind.ALLGATHER:
        return plain
    if segments == 1:
        summed = (p - 1) * (link + add)
    else:  # segment j of a turn needs the sum of segment j of the turn before; links and sums work side by side
        summed = (p - 1) * max(segments * link, segments * add, link + add) + min(link, add)
    return summed + plain if kind is Kind.ALLREDUCE else summed


def doubling_rounds(p: int) -> int:
    """Rounds on the critical path of `doubling_allreduce`."""
    power = p.bit_length() - 1
    return power + (2 if p > 1 << power else 0)


def summing_rounds(p: int) -> int:
    """Those rounds that add."""
    power = p.bit_length() - 1
    return power + (1 if p > 1 << power else 0)


def paper_s(kind: Kind, p: int, n_bytes: float, level: Level) -> float:
    """The integrated paper's accounting: ceil(log2 p) alpha + (p - 1) / p n beta, twice that for an allreduce (Eq 3 to 9)."""
    once = level.alpha_s * math.ceil(math.log2(p)) + level.beta_s_per_byte * (p - 1) / p * n_bytes
    return 2 * once if kind is Kind.ALLREDUCE else once


def sent(kind: Kind, algorithm: str, sizes: tuple[int, ...], me: int, segments: int) -> tuple[int, int]:
    """Messages and items that a member sends: what walking `rounds.collective` counts, in closed form.

    Parameters
    ----------
    sizes : tuple of int
        Items of each member's block in group order; for an allreduce every entry is the whole buffer's size.
    """
    p = len(sizes)
    if p == 1:
        return 0, 0
    if kind is Kind.ALLREDUCE:
        return _sent_doubling(p, me, sizes[0]) if algorithm == "doubling" else _sent_ring_allreduce(p, me, sizes[0], segments)
    if algorithm == "bruck":
        return _sent_bruck(kind, sizes, me)
    kept = me if kind is Kind.REDUCE_SCATTER else (me + 1) % p  # the one block that a member does not pass on
    return sum(min(segments, s) for i, s in enumerate(sizes) if i != kept), sum(sizes) - sizes[kept]


def _sent_doubling(p: int, me: int, n: int) -> tuple[int, int]:
    power = p.bit_length() - 1
    extra = p - (1 << power)
    if n == 0:
        return 0, 0
    messages = power
    if me < 2 * extra:
        messages = 1 if me % 2 == 0 else power + 1
    return messages, messages * n


def _sent_ring_allreduce(p: int, me: int, n: int, segments: int) -> tuple[int, int]:
    def size(i: int) -> int:
        i %= p
        return (i + 1) * n // p - i * n // p

    kept = (size(me + 1), size(me + 2))  # of the reduce-scatter and of the allgather half
    small, larger = divmod(n, p)
    messages = larger * min(segments, small + 1) + (p - larger) * min(segments, small)
    return 2 * messages - sum(min(segments, k) for k in kept), 2 * n - sum(kept)


def _sent_bruck(kind: Kind, sizes: tuple[int, ...], me: int) -> tuple[int, int]:
    p = len(sizes)
    at = [0]
    for j in range(p):
        at.append(at[-1] + sizes[(me + j) % p])
    spans, distance = [], 1
    while distance < p:
        count = min(distance, p - distance)
        spans.append(at[count] if kind is Kind.ALLGATHER else at[distance + count] - at[distance])
        distance *= 2
    return sum(1 for s in spans if s), sum(spans)
