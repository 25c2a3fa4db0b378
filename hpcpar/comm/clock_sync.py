"""Offsets of all ranks' clocks from rank 0's, by ping-pong; the fastest exchange is most exact."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World

#: Exchanges with every rank; the first ones are slow, because the rank may sleep.
_ROUNDS = 40
#: Pause of a waiting rank between probes (s), to leave its core to the ranks that exchange.
_PAUSE_S = 1e-4
#: Beyond the tags of schedules' steps.
_TAG = (1 << 15) - 1


def read(world: World,
         clock: Callable[[], float] = time.perf_counter) -> NDArray[np.float64] | None:
    """Compare all clocks with rank 0's, now. Every rank must call it.

    Parameters
    ----------
    clock : callable
        This rank's clock (s).

    Returns
    -------
    ndarray or None
        On rank 0, [ranks, 3]: time on the rank's clock, its offset from rank 0's clock, and the
        round trip (s). The true offset lies within half a round trip.
    """
    mine, here, back = np.zeros(1), np.zeros(1), np.zeros(1)
    if world.rank:
        while not world.comm.Iprobe(source=0, tag=_TAG):
            time.sleep(_PAUSE_S)
        for _ in range(_ROUNDS):
            _done(world.comm.Irecv(back, source=0, tag=_TAG))
            mine[0] = clock()
            _done(world.comm.Isend(mine, dest=0, tag=_TAG))
        return None
    out = np.zeros((world.size, 3))
    out[0, 0] = clock()
    for peer in range(1, world.size):
        best = np.inf
        for _ in range(_ROUNDS):
            begin = clock()
            sent = world.comm.Isend(here, dest=peer, tag=_TAG)
            _done(world.comm.Irecv(mine, source=peer, tag=_TAG))
            end = clock()
            _done(sent)
            if end - begin < best:
                best = end - begin
                out[peer] = mine[0], mine[0] - (begin + end) / 2, best
    return out


def _done(request: object) -> None:
    """Wait, and yield the core to ranks that share it."""
    while not request.Test():  # type: ignore[attr-defined]
        os.sched_yield()


def common(times_s: NDArray[np.float64], readings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert times on the ranks' own clocks to rank 0's clock.

    Between two readings, the offset is interpolated linearly.

    Parameters
    ----------
    times_s : ndarray
        [ranks, ...], times on the ranks' own clocks.
    readings : ndarray
        [ranks, 2, 3], the results of `read` at the beginning and at the end.
    """
    at, ahead = readings[:, :, 0], readings[:, :, 1]
    long = at[:, 1] - at[:, 0]
    drift = np.divide(ahead[:, 1] - ahead[:, 0], long, out=np.zeros(len(long)), where=long > 0)
    shape = (-1,) + (1,) * (times_s.ndim - 1)
    return times_s - (ahead[:, 0].reshape(shape) + drift.reshape(shape)
                      * (times_s - at[:, 0].reshape(shape)))
