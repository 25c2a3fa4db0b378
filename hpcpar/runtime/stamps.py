"""When the steps of an iteration began and ended on this rank: of all iterations, or of some spread
over a long run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm import clock_sync
from hpcpar.comm.world import World
from hpcpar.runtime.program import Program
from hpcpar.runtime.reservoir import Reservoir, most_kept

#: Times of the steps of an iteration, arrays of the run's record: of every step; when it began and
#: ended after the iteration did, and how long the program stood still at its end (communication);
#: NaN where this rank has no part in it.
STEP_TIMES = ("seconds", "start_s", "end_s", "wait_s")


class Stamps:
    """Every rank makes it at the same time: it compares the clocks, as `clocks` does later on.

    Attributes
    ----------
    kept : Reservoir
        Beginning of an iteration on this rank's clock (s), and [`STEP_TIMES`, steps] float32; the
        same iterations on every rank.
    """

    def __init__(self, world: World, steps: int) -> None:
        self._world, self._steps = world, steps
        self._first = clock_sync.read(world)
        self.kept: Reservoir[tuple[float, NDArray[np.float32]]] = Reservoir(
            most_kept(steps, world.size))

    def add(self, number: int, program: Program, begin_s: float) -> None:
        """Keeps what an iteration's program, begun at `begin_s`, has noted, where it is its turn.
        """
        if self.kept.takes(number):
            done = program.times()
            times = (done.seconds, done.started_s - begin_s, done.ended_s - begin_s, done.waited_s)
            self.kept.add(number, (begin_s, np.array(times, np.float32)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """``begin_s`` [kept], and `STEP_TIMES` [kept, steps]."""
        times = np.zeros((len(self.kept.values), len(STEP_TIMES), self._steps), np.float32)
        for i, (_, each) in enumerate(self.kept.values):
            times[i] = each
        begin_s = np.array([begin for begin, _ in self.kept.values], np.float64)
        return {"begin_s": begin_s} | {name: times[:, i] for i, name in enumerate(STEP_TIMES)}

    def clocks(self) -> NDArray[np.float64] | None:
        """The readings of all clocks at the beginning and now, [ranks, 2, 3], on rank 0 (see
        `clock_sync.read`). Every rank must call it.
        """
        last = clock_sync.read(self._world)
        return None if self._first is None or last is None else np.stack(
            [self._first, last], axis=1)
