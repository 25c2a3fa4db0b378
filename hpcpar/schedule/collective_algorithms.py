"""Collective algorithms as lists of rounds: what a member sends and receives, and in which order.

The communicator executes these rounds and nothing else, the trace counts them, and the cost
formulas are tested against them. Spans are items of a flat *wire* buffer. For allgather and
reduce-scatter the wire holds the group's blocks in rotated order, the member's own first, so that
every message of every algorithm is one contiguous span.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.plan.boxes import block
from hpcpar.schedule.steps import Algorithm, Kind


@dataclass(frozen=True)
class Message:
    """`start:stop` of the wire buffer, to or from a member of the group.

    In point-to-point patterns the member index is the rank.
    """

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Round:
    """Messages that travel together.

    Attributes
    ----------
    sends, recvs : tuple of Message
    reduce : bool
        Received items are added to the wire buffer instead of replacing it.
    after : int
        Index of the round that must be complete before this one starts (-1: none). Rounds start and
        complete in order.
    """

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]
    reduce: bool
    after: int


def _message(peer: int, start: int, stop: int) -> tuple[Message, ...]:
    return (Message(peer, start, stop),) if stop > start else ()


def ring_allreduce(p: int, me: int, n: int, segments: int) -> list[Round]:
    """Reduce-scatter, then allgather, around a ring: 2 (p - 1) messages of n / p items, each in
    `segments` pieces.
    """
    right, left = (me + 1) % p, (me - 1) % p
    out: list[Round] = []
    for t in range(2 * (p - 1)):
        give, take = (me - t) % p, (me - t - 1) % p
        for s in range(segments):
            out.append(Round(
                _message(right, *_piece(n, p, give, segments, s)),
                _message(left, *_piece(n, p, take, segments, s)),
                t < p - 1,
                (t - 1) * segments + s if t else -1,
            ))
    return out


def _piece(n: int, p: int, index: int, segments: int, s: int) -> tuple[int, int]:
    """Segment s of block `index`."""
    start, stop = block(n, p, index)
    a, b = block(stop - start, segments, s)
    return start + a, start + b


def doubling_allreduce(p: int, me: int, n: int) -> list[Round]:
    """Recursive doubling: floor(log2 p) exchanges of the whole buffer.

    Ranks beyond a power of two fold into a neighbour first and unfold last.
    """
    power = 1 << (p.bit_length() - 1)
    extra = p - power
    whole = (0, n)
    out: list[Round] = []
    if me < 2 * extra and me % 2 == 0:
        out.append(Round(_message(me + 1, *whole), (), False, -1))
        out.append(Round((), _message(me + 1, *whole), False, 0))
        return out
    if me < 2 * extra:
        out.append(Round((), _message(me - 1, *whole), True, -1))
    place = me // 2 if me < 2 * extra else me - extra
    step = 1
    while step < power:
        other = place ^ step
        peer = 2 * other + 1 if other < extra else other + extra
        out.append(Round(_message(peer, *whole), _message(peer, *whole), True, len(out) - 1))
        step *= 2
    if me < 2 * extra:
        out.append(Round(_message(me - 1, *whole), (), False, len(out) - 1))
    return out


def _offsets(sizes: tuple[int, ...], me: int) -> list[int]:
    """Where each wire position begins: position j holds block (me + j) mod p."""
    p = len(sizes)
    out = [0]
    for j in range(p):
        out.append(out[-1] + sizes[(me + j) % p])
    return out


def ring_allgather(sizes: tuple[int, ...], me: int, segments: int) -> list[Round]:
    """Blocks travel around a ring: p - 1 messages of one block each, in `segments` pieces."""
    p, at = len(sizes), _offsets(sizes, me)
    out: list[Round] = []
    for t in range(p - 1):
        give, take = (p - t) % p, p - 1 - t
        for s in range(segments):
            out.append(_ring_round(p, me, at, give, take, segments, s, t, False))
    return out


def ring_reduce_scatter(sizes: tuple[int, ...], me: int, segments: int) -> list[Round]:
    """Partial blocks travel around a ring and are summed on the way; the member's own arrives last.
    """
    p, at = len(sizes), _offsets(sizes, me)
    out: list[Round] = []
    for t in range(p - 1):
        give, take = (p - 1 - t) % p, p - 2 - t
        for s in range(segments):
            out.append(_ring_round(p, me, at, give, take, segments, s, t, True))
    return out


def _ring_round(p: int, me: int, at: list[int], give: int, take: int, segments: int, s: int, t: int,
                reduce: bool) -> Round:
    a = block(at[give + 1] - at[give], segments, s)
    b = block(at[take + 1] - at[take], segments, s)
    return Round(
        _message((me + 1) % p, at[give] + a[0], at[give] + a[1]),
        _message((me - 1) % p, at[take] + b[0], at[take] + b[1]),
        reduce,
        (t - 1) * segments + s if t else -1,
    )


def bruck_allgather(sizes: tuple[int, ...], me: int) -> list[Round]:
    """ceil(log2 p) exchanges with doubling distance and doubling size, for any p."""
    p, at = len(sizes), _offsets(sizes, me)
    out: list[Round] = []
    distance = 1
    while distance < p:
        count = min(distance, p - distance)
        out.append(Round(
            _message((me - distance) % p, 0, at[count]),
            _message((me + distance) % p, at[distance], at[distance + count]),
            False,
            len(out) - 1,
        ))
        distance *= 2
    return out


def bruck_reduce_scatter(sizes: tuple[int, ...], me: int) -> list[Round]:
    """The adjoint of `bruck_allgather`: its rounds backwards, with sends and receives exchanged and
    received blocks added.
    """
    forward = bruck_allgather(sizes, me)
    return [Round(r.recvs, r.sends, True, i - 1) for i, r in enumerate(reversed(forward))]


def collective(kind: Kind, algorithm: Algorithm, sizes: tuple[int, ...], me: int,
               segments: int) -> list[Round]:
    """Rounds of member `me` of a collective.

    Parameters
    ----------
    sizes : tuple of int
        Items of each member's block, in group order; for an allreduce every entry is the whole
        buffer's size.
    """
    if kind is Kind.ALLREDUCE:
        if algorithm is Algorithm.DOUBLING:
            return doubling_allreduce(len(sizes), me, sizes[0])
        return ring_allreduce(len(sizes), me, sizes[0], segments)
    if kind is Kind.ALLGATHER:
        if algorithm is Algorithm.BRUCK:
            return bruck_allgather(sizes, me)
        return ring_allgather(sizes, me, segments)
    if algorithm is Algorithm.BRUCK:
        return bruck_reduce_scatter(sizes, me)
    return ring_reduce_scatter(sizes, me, segments)


#: Algorithms of each collective, besides the MPI library's own.
ALGORITHMS: dict[Kind, tuple[Algorithm, ...]] = {
    Kind.ALLREDUCE: (Algorithm.RING, Algorithm.DOUBLING),
    Kind.ALLGATHER: (Algorithm.RING, Algorithm.BRUCK),
    Kind.REDUCE_SCATTER: (Algorithm.RING, Algorithm.BRUCK),
}
