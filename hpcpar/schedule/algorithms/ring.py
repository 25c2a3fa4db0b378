"""Rings: blocks travel from neighbor to neighbor; a reduction or a broadcast follows a chain.

With p members, n bytes, s pieces, and latency alpha (s) and inverse bandwidth beta (s/byte) of the
slowest link between neighbors:

allreduce
    2 (p - 1) (s alpha + n / p beta), plus the additions of its first half
allgather, reduce-scatter
    (p - 1) (s alpha + n / p beta), plus the additions of a reduce-scatter
reduce, broadcast
    (p - 2 + s) (alpha + n / s beta), plus the additions of a reduce
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from hpcpar.plan.axis import IntArray
from hpcpar.plan.boxes import block
from hpcpar.plan.config import Floats, Ints, Numbers
from hpcpar.schedule.algorithms.base import (
    ROOTED,
    SCATTERED,
    Algorithm,
    Collective,
    LinkTimes,
    Message,
    Round,
    Routed,
    message,
)
from hpcpar.schedule.steps import Kind


def ring_turns(kind: Kind, p: int, me: Ints) -> Iterator[tuple[Ints, bool]]:
    """For each turn, the block that member `me` (or each of an array of members) sends, and whether
    the next member adds it. In the same turn the member receives the block before that one.

    In turn t a member sends the block t before its own; in a reduce-scatter, t + 1 before its own.
    """
    first = int(kind is Kind.REDUCE_SCATTER)
    for t in range(2 * (p - 1) if kind is Kind.ALLREDUCE else p - 1):
        yield (me - t - first) % p, kind is not Kind.ALLGATHER and t < p - 1


@lru_cache(maxsize=64)
def block_bounds(n: int, p: int) -> tuple[int, ...]:
    """The start of each block of a buffer, and the end of the last one."""
    return (*(block(n, p, i)[0] for i in range(p)), n)


def block_sizes(n: Ints, p: int) -> IntArray:
    """Items of the p blocks of each buffer of n items: [..., p]."""
    return np.diff(np.arange(p + 1) * np.asarray(n)[..., None] // p)


class Ring(Algorithm):
    """Blocks travel around a ring in pieces; one piece is added while the next travels."""

    name = "ring"
    kinds = (Kind.ALLREDUCE, *SCATTERED, *ROOTED)
    block_by_block = True

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        if collective.kind in ROOTED:
            return _chain(collective, me)
        p, segments, whole = collective.p, collective.segments, collective.kind is Kind.ALLREDUCE
        order = self.wire_order(p, me, 1)
        at = (block_bounds(collective.sizes[0], p) if whole
              else [0, *itertools.accumulate(collective.sizes[k] for k in order)])

        def piece(peer: int, number: int, s: int) -> tuple[Message, ...]:
            place = number % p if whole else (number - me) % p
            a, b = block(at[place + 1] - at[place], segments, s)
            return message(peer % p, at[place] + a, at[place] + b)

        return [Round(piece(me + 1, int(sent), s), piece(me - 1, int(sent) - 1, s), adds)
                for sent, adds in ring_turns(collective.kind, p, me) for s in range(segments)]

    def shifts(self, kind: Kind, sizes: IntArray, segments: int
               ) -> Iterator[tuple[IntArray, bool]] | None:
        return None if kind in ROOTED else _shifts(kind, sizes, segments)

    def in_flight(self, kind: Kind, segments: int) -> int:
        """A piece waits only for the same piece of the previous turn."""
        return 1 if kind in ROOTED else segments

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """A chain pipelines its pieces, so it gains from more of them than a ring does."""
        return (4, 16) if kind in ROOTED else (2, 4)

    def sent(self, collective: Collective) -> tuple[IntArray, IntArray]:
        """A member sends every block but one, and in an allreduce does so twice."""
        kind, p, segments = collective.kind, collective.p, collective.segments
        if kind in ROOTED:
            return super().sent(collective)
        sizes = np.array(collective.sizes, np.int64)
        left_out: tuple[IntArray, ...] = (np.roll(sizes, -1),)
        if kind is Kind.ALLREDUCE:
            sizes = block_sizes(int(sizes[0]), p)
            left_out = (np.roll(sizes, -1), np.roll(sizes, -2))
        elif kind is Kind.REDUCE_SCATTER:
            left_out = (sizes,)
        items = len(left_out) * sizes.sum() - sum(left_out)
        pieces = np.minimum(sizes, segments)
        messages = len(left_out) * pieces.sum() - sum(np.minimum(n, segments) for n in left_out)
        return messages, items

    def busiest(self, kind: Kind, p: Ints, items: Ints, blocks: tuple[Ints, Ints], segments: Ints,
                inner: Ints) -> tuple[Ints, Ints]:
        if kind in ROOTED:
            count: Ints = np.minimum(1, p - 1)
            return count * np.minimum(segments, items), count * items
        pieces = np.minimum(segments, np.maximum(1, items // p))
        if kind is not Kind.ALLREDUCE:
            return (p - 1) * pieces, items - blocks[0]
        twice = 2 * items - 2 * items // p
        messages = np.where(np.less(items, p), twice, 2 * (p - 1) * pieces)
        return messages, np.where(np.equal(p, 1), 0, twice)

    def landing_items(self, kind: Kind, p: Ints, n: Ints, block: Ints) -> Ints:
        return n if kind is Kind.REDUCE else block

    def seconds(self, kind: Kind, n_bytes: Numbers, segments: Ints, route: Routed,
                add_s_per_byte: float) -> Floats:
        if kind not in ROOTED:
            return _ring_s(kind, route.p, n_bytes, segments, route.far, add_s_per_byte)
        piece = n_bytes / segments
        uniform = (route.p - 2 + segments) * (route.far.message_s(piece) + piece * add_s_per_byte)
        # pieces follow each other at the pace of the slowest link
        first, pace = route.table_s(self, kind, piece, 1, add_s_per_byte, route.crosses)
        return np.where(route.crosses, first + (segments - 1) * pace, uniform)


def _shifts(kind: Kind, sizes: IntArray, segments: int) -> Iterator[tuple[IntArray, bool]]:
    p = sizes.shape[1]
    if kind is Kind.ALLREDUCE:
        sizes = block_sizes(sizes[:, 0], p)
    for sent, adds in ring_turns(kind, p, np.arange(p)):
        pieces = block_sizes(sizes[:, sent], segments)
        yield from ((pieces[..., s], adds) for s in range(segments))


def _chain(collective: Collective, me: int) -> list[Round]:
    """Rounds of a chain: each piece arrives from one neighbor and moves on to the other."""
    p, n, segments = collective.p, collective.sizes[0], collective.segments
    at = (me - collective.root) % p
    before, after = ((collective.root + at + way) % p for way in (-1, 1))
    pieces = [(0, 0), *(block(n, segments, s) for s in range(segments)), (0, 0)]
    down = [Round(message(after, *gone) * (at < p - 1), message(before, *coming) * (at > 0))
            for gone, coming in itertools.pairwise(pieces)]
    return adjoint(down) if collective.kind is Kind.REDUCE else down


def adjoint(rounds: list[Round]) -> list[Round]:
    """The rounds reversed: sends become receives, receives become sends, receivers add."""
    return [Round(r.recvs, r.sends, True) for r in reversed(rounds)]


def _ring_s(kind: Kind, p: Ints, n_bytes: Numbers, segments: Ints, links: LinkTimes,
            add_s_per_byte: float) -> Floats:
    piece = n_bytes / (p * segments)
    link, add = links.message_s(piece), add_s_per_byte * piece
    pieces = (p - 1) * segments
    if kind is Kind.ALLGATHER:
        return pieces * link
    # segment j of a turn needs the sum of segment j of the previous turn; with several segments,
    # one is sent while another is added, and an allreduce gathers the first while it adds the last
    if kind is Kind.REDUCE_SCATTER:
        one_by_one = pieces * (link + add)
        pipelined = pieces * np.maximum(link, add) + np.minimum(link, add)
    else:
        one_by_one = pieces * (2 * link + add)
        pipelined = np.maximum(2 * pieces * link, pieces * add + (pieces - segments + 2) * link)
    return np.where(np.equal(segments, 1), one_by_one, pipelined)
