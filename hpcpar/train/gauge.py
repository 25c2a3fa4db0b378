"""A thing that is measured again and again over the time of a calibration, and what its samples say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World

#: A sample is a mean over about so long (s), at most so many repetitions.
_SAMPLE_S, _MOST = 0.01, 200
#: As long as that, where something is done before every repetition; where ranks take turns, some of a scheduler's slices.
_AFTER_S, _TURNS_S = 0.02, 0.05
#: A sample that exceeds the median by so many times the median deviation, and by half, is an outlier.
_FAR, _HALF = 5.0, 1.5
_RESAMPLES = 200
#: Percentiles of a confidence interval of 90%.
INTERVAL = (5.0, 95.0)


@dataclass(frozen=True)
class Before:
    """What is done before every repetition of a thing that is measured, outside its time.

    Attributes
    ----------
    turns : bool
        There are more ranks than cores. Whoever waits for another then waits for that one's computing, which is not the message's time, and
        takes a part of its core meanwhile, which is: what counts is by how much repetitions take longer than what is done before alone.
    """

    action: Callable[[], None]
    turns: bool = False


class Gauge:
    """Seconds of an action that every rank does at once; every rank makes and reads it at the same time.

    A sample is the slowest rank's mean over some repetitions: with more ranks than cores a single short action either owns its core
    or waits for long.

    Parameters
    ----------
    before : Before, optional
        What is done before every repetition.

    Attributes
    ----------
    once_s : float
        A first estimate.
    samples : list of float
    """

    def __init__(self, world: World, action: Callable[[], None], before: Before | None = None) -> None:
        self._world, self._action, self._before = world, action, before
        action()
        begin = time.perf_counter()
        self.once_s = self._sample(1)
        self._each_s = world.most(time.perf_counter() - begin) if before is not None else self.once_s
        lasts = _SAMPLE_S if before is None else _TURNS_S if before.turns else _AFTER_S
        self._count = int(min(_MOST, max(1, lasts / max(self._each_s, 1e-7))))
        if before is not None and before.turns and self._count == 1:
            # so long that what computing adds to it does not matter
            self._before, self._each_s = None, self.once_s
        self.samples: list[float] = []

    @property
    def sample_s(self) -> float:
        """How long a sample takes, about."""
        return self._count * self._each_s

    def take(self) -> None:
        """Take a sample."""
        self.samples.append(self._sample(self._count))

    def _sample(self, count: int) -> float:
        action, before = self._action, self._before
        if before is None:
            return self._mean(count, action)
        if before.turns:
            more = self._mean(count, before.action, action) - self._mean(count, before.action)
            # never less than without computing
            return max(more, self._mean(count, action))
        clock, lasts = time.perf_counter, 0.0
        self._world.barrier()
        for _ in range(count):
            before.action()
            begin = clock()
            action()
            lasts += clock() - begin
        return self._world.most(lasts / count)

    def _mean(self, count: int, *actions: Callable[[], None]) -> float:
        """Seconds of the actions, one after the other."""
        self._world.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            for action in actions:
                action()
        return self._world.most((time.perf_counter() - begin) / count)

    @property
    def seconds(self) -> float:
        """The median; before the first sample the estimate."""
        return float(np.median(self.samples)) if self.samples else self.once_s


def outliers(samples: Sequence[float]) -> int:
    """How many samples lie far above the others."""
    if not len(samples):
        return 0
    values = np.asarray(samples)
    middle = np.median(values)
    spread = np.median(np.abs(values - middle))
    return int(np.sum((values > middle + _FAR * spread) & (values > _HALF * middle)))


def bootstrap(rounds: NDArray[np.float64], estimate: Callable[[NDArray[np.float64]], Any]) -> NDArray[np.float64]:
    """[2, values] confidence interval (90%) of what `estimate` makes of the medians over rounds.

    Parameters
    ----------
    rounds : numpy.ndarray
        [rounds, quantities]; rounds are drawn again, each with everything that was measured in it.
    estimate : callable
        From medians [quantities] to some values.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    return np.percentile([estimate(np.median(rounds[choice], axis=0)) for choice in drawn], INTERVAL, axis=0)
