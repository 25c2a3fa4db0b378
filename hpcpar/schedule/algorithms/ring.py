"""Blocks travel around a ring of neighbors; a reduction or a broadcast follows a chain.

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

from collections.abc import Iterator

import numpy as np

from hpcpar.schedule.algorithms.base import (
    ROOTED,
    SCATTERED,
    Algorithm,
    Collective,
    Each,
    Message,
    Round,
    adjoint,
)
from hpcpar.schedule.steps import Kind


class Ring(Algorithm):
    """Blocks travel around a ring in pieces; one piece is added while the next travels."""

    name = "ring"
    kinds = (Kind.ALLREDUCE, *SCATTERED, *ROOTED)
    block_by_block = True
    together = True

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        return list((_chain if collective.kind in ROOTED else turns)(collective, me))

    def in_flight(self, kind: Kind, segments: int) -> int:
        """A piece waits only for the same piece of the previous turn."""
        return 1 if kind in ROOTED else segments

    def pieces(self, kind: Kind) -> tuple[int, ...]:
        """A chain pipelines its pieces, so it gains from more of them than a ring does, which adds
        one while the next travels.
        """
        return (4, 16) if kind in ROOTED else () if kind is Kind.ALLGATHER else (2, 4)



def turns(collective: Collective, me: Each) -> Iterator[Round]:
    """In turn t a member sends the block t before its own (in a reduce-scatter, t + 1 before), and
    receives the block before that one.
    """
    kind, p, segments = collective.kind, collective.p, collective.segments
    bounds = collective.bounds
    sizes = np.diff(bounds)
    # where the member's wire begins
    origin = bounds[me] if kind in SCATTERED else 0

    def piece(peer: Each, number: Each, s: int) -> tuple[Message, ...]:
        size = sizes[number]
        start = bounds[number]
        if kind in SCATTERED:
            start = (start - origin) % max(bounds[p], 1)
        return (Message(peer % p, start + size * s // segments,
                        start + size * (s + 1) // segments),)

    first = int(kind is Kind.REDUCE_SCATTER)
    for adds in {Kind.ALLREDUCE: (True, False), Kind.ALLGATHER: (False,)}.get(kind, (True,)):
        for t in range(1 if collective.alike else p - 1):
            sent = (me - t - first) % p
            for s in range(segments - 1 if collective.alike else 0, segments):
                yield Round(piece(me + 1, sent, s), piece(me - 1, (sent - 1) % p, s), adds,
                            (p - 1) * segments if collective.alike else 1)
        first += p - 1


def _chain(collective: Collective, me: Each) -> list[Round]:
    """Rounds of a chain: each piece arrives from one neighbor and moves on to the other."""
    p, n, segments = collective.p, collective.sizes[0], collective.segments
    at = (me - collective.root) % p

    def piece(way: int, number: Each, exists: Each) -> tuple[Message, ...]:
        moves = exists & (number >= 0) & (number < segments)
        return (Message((collective.root + at + way) % p, n * number // segments * moves,
                        n * (number + 1) // segments * moves),)

    down = [Round(piece(1, r - at, at < p - 1), piece(-1, r - at + 1, at > 0))
            for r in range(p - 2 + segments)]
    return adjoint(down) if collective.kind is Kind.REDUCE else down
