"""Members exchange the whole buffer at doubling distances, or pass it along a binomial tree.

With p members, n bytes, alpha and beta of the links between partners, and gamma (s/byte) the cost
of adding:

allreduce
    r (alpha + n beta + n gamma), r = log2 p (2 more rounds if p is not a power of two)
reduce, broadcast
    ceil(log2 p) (alpha + n beta), plus the additions of a reduce

Messages are priced one by one where a reduction or a broadcast spans nodes, or an allreduce whose p
is not a power of two.
"""

from __future__ import annotations

import numpy as np

from hpcpar.schedule.algorithms.base import (
    ROOTED,
    Algorithm,
    Collective,
    Each,
    Message,
    Round,
    adjoint,
)
from hpcpar.schedule.steps import Kind


class Doubling(Algorithm):
    """Exchanges of the whole buffer at doubling distance."""

    name = "doubling"
    kinds = (Kind.ALLREDUCE, *ROOTED)
    together = True

    def rounds(self, collective: Collective, me: Each) -> list[Round]:
        if collective.kind is Kind.ALLREDUCE:
            return _exchanges(collective.p, me, collective.sizes[0])
        down = _tree(collective, me)
        return adjoint(down) if collective.kind is Kind.REDUCE else down



def _exchanges(p: int, me: Each, n: int) -> list[Round]:
    """floor(log2 p) exchanges; before, members beyond a power of two send to a neighbor, which
    returns the sum at the end.
    """
    power = 1 << (p.bit_length() - 1)
    extra = p - power
    folded, folds = ((me < 2 * extra) & (me % 2 == odd) for odd in (0, 1))
    away, to = (Message(me + 1, 0, n * folded),), (Message(me - 1, 0, n * folds),)
    place = np.where(folds, me // 2, me - extra)
    out = [Round(away, to, True)] if extra else []
    for r in range(power.bit_length() - 1):
        other = place ^ (1 << r)
        both = (Message(np.where(other < extra, 2 * other + 1, other + extra), 0,
                        n * np.logical_not(folded)),)
        out.append(Round(both, both, True))
    return [*out, Round(to, away)] if extra else out


def _tree(collective: Collective, me: Each) -> list[Round]:
    """Rounds of a broadcast along a binomial tree, the farthest member first."""
    p, n, root = collective.p, collective.sizes[0], collective.root
    at = (me - root) % p
    out = []
    for r in reversed(range((p - 1).bit_length())):
        distance = 1 << r
        sends = (at % (2 * distance) == 0) & (at + distance < p)
        out.append(Round((Message((me + distance) % p, 0, n * sends),),
                         (Message((me - distance) % p, 0, n * (at % (2 * distance) == distance)),)))
    return out
