"""Repeated measurement of an action over a calibration, and statistics of its samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend

#: Length of a sample (s), of at most so many repetitions.
_SAMPLE_S, _MOST = 0.01, 200
#: Its length where something is done before every repetition.
_AFTER_S = 0.02
#: A sample that exceeds the median by so many times the median deviation, and by half, is an
#: outlier.
_FAR, _HALF = 5.0, 1.5
_RESAMPLES = 200
#: Percentiles of a confidence interval of 90%.
INTERVAL = (5.0, 95.0)


class Timer:
    """Seconds of an action that every rank does at once; all ranks create and read it together.

    A sample is the slowest rank's mean over some repetitions. These are submitted one after the
    other and timed where they are done: a GPU's time, without the host's waiting for it.

    Parameters
    ----------
    before : callable, optional
        Done before every repetition, outside its time.
    lasts_s : float, optional
        A sample is a mean over so long, however many repetitions that are.
    """

    def __init__(
        self, world: World, backend: Backend, action: Callable[[], None],
        before: Callable[[], None] | None = None, lasts_s: float | None = None,
    ) -> None:
        self._world, self._backend = world, backend
        self.action, self._before = action, before
        self.samples: list[float] = []
        action()
        begin = time.perf_counter()
        #: A first estimate (s).
        self.once_s = self._each_s = self._sample(1)
        if before is not None:
            self._each_s = world.max(time.perf_counter() - begin)
        if lasts_s is None:
            usual_s = _SAMPLE_S if before is None else _AFTER_S
            self._count = int(min(_MOST, max(1, usual_s / max(self._each_s, 1e-7))))
        else:
            self._count = self._lasting(lasts_s)

    def _lasting(self, lasts_s: float) -> int:
        """Number of repetitions that last so long; a single one may be interrupted."""
        count = 1
        while self._each_s * count < lasts_s / 2:
            count *= 4
            self._each_s = self._sample(count)
        return max(1, round(lasts_s / self._each_s))

    @property
    def sample_s(self) -> float:
        """Duration of a sample (s), about."""
        return self._count * self._each_s

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
        """The median; before the first sample the estimate."""
        return float(np.median(self.samples)) if self.samples else self.once_s


def long_enough(sizes: tuple[int, int], least_s: float,
                make: Callable[[int], Timer]) -> tuple[int, Timer]:
    """The first size that takes `least_s` on the slowest rank, and its timer: it doubles from the
    first of `sizes` up to the last.
    """
    size, last = sizes
    timer = make(size)
    while timer.once_s < least_s and size < last:
        size *= 2
        timer = make(size)
    return size, timer


def outliers(samples: Sequence[float] | NDArray[np.float64]) -> int:
    """The number of samples that lie far above the others."""
    if not len(samples):
        return 0
    values = np.asarray(samples)
    middle = np.median(values)
    spread = np.median(np.abs(values - middle))
    return int(np.sum((values > middle + _FAR * spread) & (values > _HALF * middle)))


def bootstrap(rounds: NDArray[np.float64],
              estimate: Callable[[NDArray[np.float64]], Any]) -> NDArray[np.float64]:
    """[2, values] confidence interval (90%) of an estimate from the medians over rounds.

    Parameters
    ----------
    rounds : numpy.ndarray
        [rounds, quantities]; rounds are drawn again, each with everything that was measured in it.
    estimate : callable
        From medians [quantities] to some values.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(rounds), (_RESAMPLES, len(rounds)))
    return np.percentile([estimate(np.median(rounds[choice], axis=0)) for choice in drawn],
                         INTERVAL, axis=0)
