"""Each member exchanges messages with the root directly.

This takes (p - 1) (alpha + n beta), plus the additions of a reduce, as the papers count it.
Point-to-point messages also carry this algorithm's name.
"""

from __future__ import annotations

from hpcpar.schedule.algorithms.base import (
    ROOTED,
    Algorithm,
    Collective,
    Round,
    adjoint,
    message,
)
from hpcpar.schedule.steps import Kind


class Direct(Algorithm):
    """Messages between the root and each member directly."""

    name = "direct"
    kinds = ROOTED

    def rounds(self, collective: Collective, me: int) -> list[Round]:
        p, n, root = collective.p, collective.sizes[0], collective.root
        down = [Round((), message(root, 0, n))]
        if me == root:
            down = [Round(tuple(m for to in range(1, p) for m in message((root + to) % p, 0, n)),
                          ())]
        return adjoint(down) if collective.kind is Kind.REDUCE else down
