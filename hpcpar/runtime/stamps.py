"""Step times of the iterations of a run on this rank; of a long run, only some iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm import clock_sync
from hpcpar.comm.world import World
from hpcpar.runtime.program import StepTimes
from hpcpar.runtime.reservoir import KEPT_TIMES_MEANWHILE, MIN_ITERATIONS, Reservoir, max_kept

#: Arrays of step times in a run's record, as in `StepTimes`, with start and end counted from the
#: beginning of the iteration; NaN where this rank takes no part in a step.
STEP_TIMES = ("seconds", "start_s", "end_s", "wait_s")


class Stamps:
    """Collects step times. All ranks must create it at the same time, because they compare clocks.

    Parameters
    ----------
    few : bool
        Keep step times of few iterations. Replayed iterations have none.

    Attributes
    ----------
    kept : Reservoir
        Beginning of an iteration on this rank's clock (s), and [`STEP_TIMES`, steps] float32; the
        same iterations on every rank.
    """

    def __init__(self, world: World, steps: int, few: bool = False) -> None:
        self._world, self._steps = world, steps
        self._first = clock_sync.read(world)
        self.kept: Reservoir[tuple[float, NDArray[np.float32]]] = Reservoir(
            MIN_ITERATIONS if few else max_kept(steps, world.size))

    def add(self, number: int, times: Callable[[], StepTimes], begin_s: float) -> None:
        """Keep the step times of an iteration that began at `begin_s`, if taken."""
        if self.kept.takes(number):
            t = times()
            arrays = (t.seconds, t.started_s - begin_s, t.ended_s - begin_s, t.waited_s)
            self.kept.add(number, (begin_s, np.array(arrays, np.float32)))

    def arrays(self, whole: bool = True) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Numbers of the kept iterations, ``begin_s`` [kept], and `STEP_TIMES` [kept, steps].

        Unless `whole`, there are fewer of them, so that writing them takes milliseconds.
        """
        kept = self.kept if whole else self.kept.thinned(
            max_kept(self._steps, self._world.size, KEPT_TIMES_MEANWHILE))
        times = np.zeros((len(kept.values), len(STEP_TIMES), self._steps), np.float32)
        for i, (_, of_iteration) in enumerate(kept.values):
            times[i] = of_iteration
        begin_s = np.array([begin for begin, _ in kept.values], np.float64)
        return kept.numbers, {"begin_s": begin_s} | {
            name: times[:, i] for i, name in enumerate(STEP_TIMES)}

    def clocks(self) -> NDArray[np.float64] | None:
        """On rank 0, clock readings [ranks, 2, 3], first and now. Every rank must call this."""
        last = clock_sync.read(self._world)
        return None if self._first is None or last is None else np.stack(
            [self._first, last], axis=1)
