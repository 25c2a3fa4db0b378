"""Repeated timing of an action during a calibration, and statistics of the samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend

#: Length of a sample (s) without and with an action before every repetition.
_SAMPLE_S, _SAMPLE_WITH_BEFORE_S = 0.01, 0.02
#: Largest number of repetitions in a sample.
_MAX_REPETITIONS = 200
#: A sample is an outlier if it exceeds the median by this multiple of the median absolute
#: deviation, and also exceeds this multiple of the median.
_DEVIATIONS, _MEDIANS = 5.0, 1.5
_RESAMPLES = 200
#: Percentiles of a 90% confidence interval.
INTERVAL = (5.0, 95.0)


class Timer:
    """Times an action that all ranks do at the same time. All methods are collective.

    A sample is the mean over several repetitions, on the slowest rank. Repetitions are submitted
    one after the other and timed on the device, without a host synchronization after each.

    Parameters
    ----------
    before : callable, optional
        Runs before every repetition and is not timed.
    sample_s : float, optional
        Length of a sample (s), without a limit to the repetitions.
    """

    def __init__(
        self, world: World, backend: Backend, action: Callable[[], None],
        before: Callable[[], None] | None = None, sample_s: float | None = None,
    ) -> None:
        self._world, self._backend = world, backend
        self.action, self._before = action, before
        self.samples: list[float] = []
        action()
        begin = time.perf_counter()
        #: A first estimate (s).
        self.once_s = self._repetition_s = self._sample(1)
        if before is not None:
            self._repetition_s = world.max(time.perf_counter() - begin)
        if sample_s is None:
            usual_s = _SAMPLE_S if before is None else _SAMPLE_WITH_BEFORE_S
            self._count = int(min(_MAX_REPETITIONS,
                                  max(1, usual_s / max(self._repetition_s, 1e-7))))
        else:
            self._count = self._repetitions_in(sample_s)

    def _repetitions_in(self, sample_s: float) -> int:
        """Number of repetitions in a sample, from several: a single one may be interrupted."""
        count = 1
        while self._repetition_s * count < sample_s / 2:
            count *= 4
            self._repetition_s = self._sample(count)
        return max(1, round(sample_s / self._repetition_s))

    @property
    def sample_s(self) -> float:
        """Approximate duration of a sample (s)."""
        return self._count * self._repetition_s

    def take(self) -> None:
        """Take a sample."""
        self.samples.append(self._sample(self._count))

    def _sample(self, count: int) -> float:
        action, before, mark = self.action, self._before, self._backend.mark
        self._world.barrier()
        if before is None:
            marks = [mark()]
            for _ in range(count):
                action()
            marks.append(mark())
        else:
            marks = []
            for _ in range(count):
                before()
                marks.append(mark())
                action()
                marks.append(mark())
        begin_s, end_s = self._backend.times_s(marks).reshape(-1, 2).T
        return self._world.max(float((end_s - begin_s).sum()) / count)

    @property
    def seconds(self) -> float:
        """Median of the samples; the first estimate if there are none."""
        return float(np.median(self.samples)) if self.samples else self.once_s


def long_enough(sizes: tuple[int, int], least_s: float,
                make: Callable[[int], Timer]) -> tuple[int, Timer]:
    """The first size that takes at least `least_s` on the slowest rank, and its timer.

    The size doubles from the first of `sizes` up to the last.
    """
    size, last = sizes
    timer = make(size)
    while timer.once_s < least_s and size < last:
        size *= 2
        timer = make(size)
    return size, timer


def outliers(samples: Sequence[float] | NDArray[np.float64]) -> int:
    """The number of samples far above the others."""
    if not len(samples):
        return 0
    values = np.asarray(samples)
    median = np.median(values)
    deviation = np.median(np.abs(values - median))
    return int(np.sum((values > median + _DEVIATIONS * deviation) & (values > _MEDIANS * median)))


def bootstrap(rounds: NDArray[np.float64],
              estimate: Callable[[NDArray[np.float64]], Any]) -> NDArray[np.float64]:
    """[2, values] 90% confidence interval of an estimate, by resampling of whole rounds.

    Parameters
    ----------
    rounds : numpy.ndarray
        [rounds, quantities] samples.
    estimate : callable
        Maps the medians [quantities] over rounds to the estimated values.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    return np.percentile([estimate(np.median(rounds[choice], axis=0)) for choice in drawn],
                         INTERVAL, axis=0)
