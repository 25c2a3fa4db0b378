"""Collective algorithms as lists of rounds: what a member sends and receives, and in which order.

The communicator executes these rounds and nothing else, the trace counts them, and the cost
formulas are tested against them. Spans are items of a flat *wire* buffer. For allgather and
reduce-scatter the wire holds the group's blocks in `wire_order`, the member's own first, so that
every message of every algorithm is one contiguous span.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

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


def radices(p: int, inner: int = 1) -> tuple[int, ...]:
    """Sizes of the stages of halving, nearest members first: every factor two, then the odd rest;
    of the `inner` members of a node, then of the nodes.
    """
    out: list[int] = []
    for size in (inner, p // inner):
        while size % 2 == 0:
            out.append(2)
            size //= 2
        out += [size] * (size > 1)
    return tuple(out)


@dataclass(frozen=True)
class _HalvingStage:
    """A stage of halving: the members that differ in one digit of their index exchange its parts.

    Attributes
    ----------
    size, stride, digit : int
        Members of the stage, their distance in the group, and this member's place among them.
    own, base, width : int
        Which part of the wire is the member's own, where the parts begin, and blocks of a part.
    """

    size: int
    stride: int
    digit: int
    own: int
    base: int
    width: int

    def messages(self, me: int, distance: int, first: int, count: int,
                 at: Sequence[int]) -> tuple[Message, ...]:
        """Parts `first` to `first + count`, counted from the own one around, to or from the member
        at `distance`: two messages where they pass the end of the wire.
        """
        peer = me + ((self.digit + distance) % self.size - self.digit) * self.stride
        start = (self.own + first) % self.size
        stop = min(start + count, self.size)
        out: tuple[Message, ...] = ()
        for a, b in ((start, stop), (0, start + count - stop)):
            out += _message(peer, at[self.base + a * self.width], at[self.base + b * self.width])
        return out


def _stages(p: int, me: int, inner: int, rotated: bool) -> list[_HalvingStage]:
    """The stages of halving; in a rotated wire a member's own part comes first in each."""
    out: list[_HalvingStage] = []
    stride, base, width = 1, 0, p
    for size in radices(p, inner):
        digit = me // stride % size
        own, width = 0 if rotated else digit, width // size
        out.append(_HalvingStage(size, stride, digit, own, base, width))
        base, stride = base + own * width, stride * size
    return out


def _gathered(me: int, stages: list[_HalvingStage], at: Sequence[int]) -> list[Round]:
    """Within each stage, the farthest first, exchanges at doubling distance of doubling size."""
    out: list[Round] = []
    for stage in reversed(stages):
        distance = 1
        while distance < stage.size:
            count = min(distance, stage.size - distance)
            out.append(Round(
                stage.messages(me, -distance, 0, count, at),
                stage.messages(me, distance, distance, count, at),
                False,
                len(out) - 1,
            ))
            distance *= 2
    return out


def _adjoint(rounds: list[Round]) -> list[Round]:
    """Rounds backwards, with sends and receives exchanged and received blocks added."""
    return [Round(r.recvs, r.sends, True, i - 1) for i, r in enumerate(reversed(rounds))]


def halving_allgather(sizes: tuple[int, ...], me: int, inner: int) -> list[Round]:
    """Recursive doubling between partners, with Bruck's allgather around the odd rest: ceil(log2 p)
    exchanges, most items between near members. The wire lies in `wire_order`.
    """
    order = wire_order(len(sizes), me, inner)
    at = [0, *itertools.accumulate(sizes[k] for k in order)]
    return _gathered(me, _stages(len(sizes), me, inner, True), at)


def halving_reduce_scatter(sizes: tuple[int, ...], me: int, inner: int) -> list[Round]:
    """Recursive halving, the adjoint of `halving_allgather`."""
    return _adjoint(halving_allgather(sizes, me, inner))


def halving_allreduce(p: int, me: int, n: int, inner: int) -> list[Round]:
    """Rabenseifner's allreduce, for any p: a reduce-scatter by halving, then its allgather.

    With `inner` members in each node it is hierarchical: a reduce-scatter in the node, an allreduce
    of n / inner items between the nodes, an allgather in the node.
    """
    gather = _gathered(me, _stages(p, me, inner, False), _bounds(n, p))
    return [replace(r, after=i - 1) for i, r in enumerate([*_adjoint(gather), *gather])]


@lru_cache(maxsize=64)
def _bounds(n: int, p: int) -> tuple[int, ...]:
    """Where each block of a buffer begins, and where the last ends: the same for all members."""
    return (*(block(n, p, i)[0] for i in range(p)), n)


def wire_order(p: int, me: int, inner: int | None) -> list[int]:
    """The members whose blocks lie side by side in the wire of an allgather or reduce-scatter: each
    stage's from the own one around. A ring (`inner` None) is one stage.
    """
    order, stride = [0], 1
    for size in (p,) if inner is None else radices(p, inner):
        digit = me // stride % size
        order = [k + (digit + j) % size * stride for k in order for j in range(size)]
        stride *= size
    return order


def broadcast(algorithm: Algorithm, p: int, me: int, n: int, segments: int, root: int
              ) -> list[Round]:
    """From the root to each member directly; along a chain (ring) in `segments` pieces; or down a
    binomial tree (doubling), the farthest first. A reduction is the adjoint.
    """
    at = (me - root) % p

    def message(to: int, start: int = 0, stop: int = n) -> tuple[Message, ...]:
        return _message((root + to) % p, start, stop) if 0 <= to < p else ()

    if algorithm is Algorithm.DIRECT:
        everyone = tuple(m for to in range(1, p) for m in message(to))
        return [Round((), message(0), False, -1) if at else Round(everyone, (), False, -1)]
    if algorithm is Algorithm.RING:
        pieces = [(0, 0), *(block(n, segments, s) for s in range(segments)), (0, 0)]
        return [Round(message(at + 1, *gone), message(at - 1, *coming), False, i - 1)
                for i, (gone, coming) in enumerate(itertools.pairwise(pieces))]
    distance = at & -at or 1 << (p - 1).bit_length()
    out = [Round((), message(at - distance), False, -1)] if at else []
    while distance > 1:
        distance //= 2
        out.append(Round(message(at + distance), (), False, len(out) - 1))
    return out


def collective(kind: Kind, algorithm: Algorithm, sizes: tuple[int, ...], me: int,
               segments: int, inner: int = 1, root: int = 0) -> list[Round]:
    """Rounds of member `me` of a collective.

    Parameters
    ----------
    sizes : tuple of int
        Items of each member's block, in group order; of an allreduce, a reduction or a broadcast
        every entry is the whole buffer's size.
    segments : int
        Pieces of a ring's messages.
    inner : int
        Members of the group in each node, for halving; 1 where nodes do not matter.
    root : int
        The member that a reduction ends at, or a broadcast begins at.
    """
    if kind in (Kind.REDUCE, Kind.BROADCAST):
        down = broadcast(algorithm, len(sizes), me, sizes[0], segments, root)
        return _adjoint(down) if kind is Kind.REDUCE else down
    halving = algorithm is Algorithm.HALVING
    if kind is Kind.ALLREDUCE:
        if halving:
            return halving_allreduce(len(sizes), me, sizes[0], inner)
        if algorithm is Algorithm.DOUBLING:
            return doubling_allreduce(len(sizes), me, sizes[0])
        return ring_allreduce(len(sizes), me, sizes[0], segments)
    if kind is Kind.ALLGATHER:
        if halving:
            return halving_allgather(sizes, me, inner)
        return ring_allgather(sizes, me, segments)
    if halving:
        return halving_reduce_scatter(sizes, me, inner)
    return ring_reduce_scatter(sizes, me, segments)


#: Algorithms of each collective, besides the MPI library's own.
ALGORITHMS: dict[Kind, tuple[Algorithm, ...]] = {
    Kind.ALLREDUCE: (Algorithm.RING, Algorithm.DOUBLING, Algorithm.HALVING),
    Kind.ALLGATHER: (Algorithm.RING, Algorithm.HALVING),
    Kind.REDUCE_SCATTER: (Algorithm.RING, Algorithm.HALVING),
    Kind.REDUCE: (Algorithm.RING, Algorithm.DOUBLING, Algorithm.DIRECT),
    Kind.BROADCAST: (Algorithm.RING, Algorithm.DOUBLING, Algorithm.DIRECT),
}
