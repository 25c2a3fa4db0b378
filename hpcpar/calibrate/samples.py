"""Times of compute steps over many iterations, and their means for a machine's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.compute.work import Work

#: Part of the iterations that count, in the middle of all of them.
_MIDDLE = 0.5


class Samples(NamedTuple):
    """Times of pieces of work in iterations with all ranks at work."""

    works: list[Work]
    #: [iterations, works], see `of_all_ranks`.
    seconds: NDArray[np.float64]

    def table(self) -> dict[str, float]:
        """Seconds by key: the mean over the iterations that took neither long nor short.

        Interruptions of a rank belong to some iterations. Where these are few, the median
        iteration has none; where every iteration is interrupted somewhere, it has its part.
        """
        order = np.argsort(self.seconds.sum(axis=1), kind="stable")
        n = len(order)
        aside = int(n * (1 - _MIDDLE) / 2)
        means = self.seconds[order[aside: n - aside]].mean(axis=0)
        return {work.key: float(s) for work, s in zip(self.works, means, strict=True)}


def of_all_ranks(seconds: NDArray[np.float64], shared: bool) -> NDArray[np.float64]:
    """Times that count in each iteration, [iterations, works], from [ranks, iterations, works].

    At almost every layer ranks wait for the slowest: the slowest rank counts. Where ranks share
    cores, a rank is slow because others run meanwhile: the mean of the ranks that have the work
    counts.
    """
    if not shared:
        return seconds.max(axis=0)
    ranks = (seconds > 0).any(axis=1).sum(axis=0)
    return seconds.sum(axis=0) / np.maximum(ranks, 1)


def together(visits: Sequence[Samples]) -> Samples:
    """The iterations of several visits of a plan."""
    return Samples(visits[0].works, np.concatenate([v.seconds for v in visits]))
