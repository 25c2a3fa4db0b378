"""What any rank asks of all: to stop, to write a checkpoint."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hpcpar.comm.backoff import pause
from hpcpar.comm.world import World


class Vote:
    """A vote in every iteration that nobody waits for: its result is known one iteration later.

    Until then all ranks have long taken part, for they have exchanged the iteration's loss.
    """

    def __init__(self, world: World) -> None:
        self._mpi, self._comm = world.mpi, world.comm.Dup()
        self._mine, self._all = np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._request: Any = None

    def cast(self, flags: int) -> int:
        """Posts this rank's flags; returns those of all ranks together in the vote before, the
        same on every rank.
        """
        before = self._result()
        self._mine[0] = flags
        self._request = self._comm.Iallreduce(self._mine, self._all, op=self._mpi.BOR)
        return before

    def close(self) -> None:
        """Ends the last vote. Every rank must call it."""
        self._result()
        self._comm.Free()

    def _result(self) -> int:
        if self._request is None:
            return 0
        polls, begin_s = 0, time.monotonic()
        while not self._request.Test():
            polls += 1
            pause(polls, time.monotonic() - begin_s)
        self._request = None
        return int(self._all[0])
