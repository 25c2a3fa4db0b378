"""Times of compute steps over many iterations, and their means for a machine's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.work import Work

#: Share of the iterations that count: the middle ones by their time.
_MIDDLE = 0.5


class Samples(NamedTuple):
    """Times of pieces of work in iterations on all ranks.

    Attributes
    ----------
    submit_s : float
        Host time to submit a step to a device; 0 where the host computes.
    """

    works: list[Work]
    #: [iterations, works], see `of_all_ranks`.
    seconds: NDArray[np.float64]
    submit_s: float = 0.0

    def table(self) -> dict[str, float]:
        """Seconds by key: the mean over the iterations with the middle half of the times.

        The mean thus leaves out rare interruptions of a rank, but includes frequent ones.
        """
        order = np.argsort(self.seconds.sum(axis=1), kind="stable")
        n = len(order)
        tail = int(n * (1 - _MIDDLE) / 2)
        means = self.seconds[order[tail: n - tail]].mean(axis=0)
        return {work.key: float(s) for work, s in zip(self.works, means, strict=True)}


def of_all_ranks(seconds: NDArray[np.float64], shared: bool) -> NDArray[np.float64]:
    """Times [iterations, works] of all ranks, from times [ranks, iterations, works] of each.

    Usually the slowest rank counts, because ranks wait for it at almost every layer. If ranks share
    cores, a rank is slow because others run meanwhile, so the mean counts, over the ranks that have
    the work.
    """
    if not shared:
        return seconds.max(axis=0)
    ranks = (seconds > 0).any(axis=1).sum(axis=0)
    return seconds.sum(axis=0) / np.maximum(ranks, 1)


def concatenated(visits: Sequence[Samples]) -> Samples:
    """The samples from several visits of a plan."""
    return Samples(visits[0].works, np.concatenate([v.seconds for v in visits]),
                   float(np.median([v.submit_s for v in visits])))
