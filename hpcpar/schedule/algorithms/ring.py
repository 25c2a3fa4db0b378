"""Rings: blocks travel from neighbour to neighbour; a reduction or a broadcast goes along a chain.

With p members, n bytes, latency alpha (s) and inverse bandwidth beta (s/byte) of the slowest link
between neighbours, s pieces:

allreduce
    2 (p - 1) (s alpha + n / p beta), and the sums of its first half
allgather, reduce-scatter
    (p - 1) (s alpha + n / p beta), and the sums of a reduce-scatter
reduce, broadcast
    (p - 2 + s) (alpha + n / s beta), and the sums of a reduce
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


def turns(kind: Kind, p: int, me: Ints) -> Iterator[tuple[Ints, bool]]:
    """By turn, the block that member `me` (or each of an array of members) passes on, and whether
    the next member adds it. It takes the block before that.

    In turn t a member passes on the block t before its own; in a reduce-scatter one more before.
    """
    first = int(kind is Kind.REDUCE_SCATTER)
    for t in range(2 * (p - 1) if kind is Kind.ALLREDUCE else p - 1):
        yield (me - t - first) % p, kind is not Kind.ALLGATHER and t < p - 1


@lru_cache(maxsize=64)
def block_bounds(n: int, p: int) -> tuple[int, ...]:
    """Where each block of a buffer begins, and where the last ends."""
    return (*(block(n, p, i)[0] for i in range(p)), n)


def block_sizes(n: Ints, p: int) -> IntArray:
    """Items of the blocks of a buffer, or of each of many: [..., p]."""
    return np.diff(np.arange(p + 1) * np.asarray(n)[..., None] // p)


class Ring(Algorithm):
    """Blocks around a ring, in pieces of which one is added while the next travels."""

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

        return [Round(piece(me + 1, int(give), s), piece(me - 1, int(give) - 1, s), adds)
                for give, adds in turns(collective.kind, p, me) for s in range(segments)]

    def shifts(self, kind: Kind, sizes: IntArray, segments: int
               ) -> Iterator[tuple[IntArray, bool]] | None:
        return None if kind in ROOTED else _shifts(kind, sizes, segments)

    def in_flight(self, kind: Kind, segments: int) -> int:
        """A piece waits for the piece of the turn before."""
        return 1 if kind in ROOTED else segments

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """More of a chain's hide more of its length."""
        return (4, 16) if kind in ROOTED else (2, 4)

    def sent(self, collective: Collective) -> tuple[IntArray, IntArray]:
        """A member passes on every block but one; in an allreduce twice."""
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
        each = n_bytes / segments
        alike = (route.p - 2 + segments) * (route.far.message_s(each) + each * add_s_per_byte)
        # pieces follow each other at the pace of the slowest link
        first, pace = route.table_s(self, kind, each, 1, add_s_per_byte, route.crosses)
        return np.where(route.crosses, first + (segments - 1) * pace, alike)


def _shifts(kind: Kind, sizes: IntArray, segments: int) -> Iterator[tuple[IntArray, bool]]:
    p = sizes.shape[1]
    if kind is Kind.ALLREDUCE:
        sizes = block_sizes(sizes[:, 0], p)
    for give, adds in turns(kind, p, np.arange(p)):
        pieces = block_sizes(sizes[:, give], segments)
        yield from ((pieces[..., s], adds) for s in range(segments))


def _chain(collective: Collective, me: int) -> list[Round]:
    """The pieces come one by one from the member before and go on to the next one."""
    p, n, segments = collective.p, collective.sizes[0], collective.segments
    at = (me - collective.root) % p
    before, after = ((collective.root + at + way) % p for way in (-1, 1))
    pieces = [(0, 0), *(block(n, segments, s) for s in range(segments)), (0, 0)]
    down = [Round(message(after, *gone) * (at < p - 1), message(before, *coming) * (at > 0))
            for gone, coming in itertools.pairwise(pieces)]
    return adjoint(down) if collective.kind is Kind.REDUCE else down


def adjoint(rounds: list[Round]) -> list[Round]:
    """Rounds backwards, with sends and receives exchanged and received blocks added."""
    return [Round(r.recvs, r.sends, True) for r in reversed(rounds)]


def _ring_s(kind: Kind, p: Ints, n_bytes: Numbers, segments: Ints, links: LinkTimes,
            add_s_per_byte: float) -> Floats:
    each = n_bytes / (p * segments)
    link, add = links.message_s(each), add_s_per_byte * each
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
