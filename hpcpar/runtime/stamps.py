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

#: Step times of all ranks together that a record holds at most, in each of its arrays (12 MB for
#: the three).
_MOST = 1 << 20
#: Iterations that are kept follow each other in runs of so many, for timelines; the fewest that are
#: kept.
_TOGETHER, _FEWEST = 4, 16


class Stamps:
    """Every rank makes it at the same time: it compares the clocks, as `close` does at the end of
    the run.

    Attributes
    ----------
    kept : list of int
        Numbers of the iterations whose steps are kept; the same on every rank.
    begin_s : list of float
        Beginning of every kept iteration on this rank's clock.
    starts_s, ends_s, waits_s : list of numpy.ndarray
        [steps] float32 of every kept iteration: when a step began and ended after the iteration
        did, and how long the program stood still at its end (communication); NaN where this rank
        has no part in it.
    """

    def __init__(self, world: World, steps: int) -> None:
        self._world = world
        self._first = clock_sync.read(world)
        self._most = max(_FEWEST, _MOST // max(1, steps * world.size))
        self._stride, self._seen = 1, 0
        self.kept: list[int] = []
        self.begin_s: list[float] = []
        self.starts_s: list[NDArray[np.float32]] = []
        self.ends_s: list[NDArray[np.float32]] = []
        self.waits_s: list[NDArray[np.float32]] = []

    def add(self, program: Program, begin_s: float) -> None:
        """Keep what an iteration's program, begun at `begin_s`, has noted, where it is its turn."""
        number = self._seen
        self._seen += 1
        if number // _TOGETHER % self._stride:
            return
        self.kept.append(number)
        self.begin_s.append(begin_s)
        self.starts_s.append((program.started_s - begin_s).astype(np.float32))
        self.ends_s.append((program.ended_s - begin_s).astype(np.float32))
        self.waits_s.append(program.waited_s.astype(np.float32))
        if len(self.kept) > self._most:
            self._stride *= 2
            chosen = [i for i, n in enumerate(self.kept) if n // _TOGETHER % self._stride == 0]
            kept: tuple[list[Any], ...] = (self.kept, self.begin_s, self.starts_s, self.ends_s,
                                           self.waits_s)
            for values in kept:
                values[:] = [values[i] for i in chosen]

    def close(self) -> NDArray[np.float64] | None:
        """The readings of all clocks at the beginning and now, [ranks, 2, 3], on rank 0 (see
        `clock_sync.read`). Every rank must call it.
        """
        last = clock_sync.read(self._world)
        return None if self._first is None or last is None else np.stack(
            [self._first, last], axis=1)
