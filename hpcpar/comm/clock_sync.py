"""Offsets of all clocks from rank 0's, by ping-pong; the fastest exchange counts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World

#: Exchanges with every rank; the first ones are slow, because the rank may sleep.
_ROUNDS = 40
#: A waiting rank's pause between probes (s), which leaves its core to the ranks that exchange.
_PAUSE_S = 1e-4
#: A tag that no step of a schedule uses.
_TAG = (1 << 15) - 1


def read(world: World,
         clock: Callable[[], float] = time.perf_counter) -> NDArray[np.float64] | None:
    """Compare all clocks (s) with rank 0's now. Every rank must call this.

    Returns
    -------
    ndarray or None
        On rank 0, [ranks, 3]: time on the rank's clock, its offset from rank 0's clock, and the
        round trip (s). The true offset lies within half a round trip.
    """
    time_s, ping = np.zeros(1), np.zeros(1)
    if world.rank:
        while not world.comm.Iprobe(source=0, tag=_TAG):
            time.sleep(_PAUSE_S)
        for _ in range(_ROUNDS):
            _finish(world.comm.Irecv(ping, source=0, tag=_TAG))
            time_s[0] = clock()
            _finish(world.comm.Isend(time_s, dest=0, tag=_TAG))
        return None
    out = np.zeros((world.size, 3))
    out[0, 0] = clock()
    for peer in range(1, world.size):
        best = np.inf
        for _ in range(_ROUNDS):
            begin = clock()
            sent = world.comm.Isend(ping, dest=peer, tag=_TAG)
            _finish(world.comm.Irecv(time_s, source=peer, tag=_TAG))
            end = clock()
            _finish(sent)
            if end - begin < best:
                best = end - begin
                out[peer] = time_s[0], time_s[0] - (begin + end) / 2, best
    return out


def _finish(request: object) -> None:
    """Wait for a request, and yield the core to ranks that share it."""
    while not request.Test():  # type: ignore[attr-defined]
        os.sched_yield()


def common(times_s: NDArray[np.float64], readings: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert times on the ranks' own clocks to rank 0's clock.

    The offset is interpolated linearly between two readings.

    Parameters
    ----------
    times_s : ndarray
        [ranks, ...], times on the ranks' own clocks.
    readings : ndarray
        [ranks, 2, 3], the results of `read` at the beginning and at the end.
    """
    at, ahead = readings[:, :, 0], readings[:, :, 1]
    span = at[:, 1] - at[:, 0]
    drift = np.divide(ahead[:, 1] - ahead[:, 0], span, out=np.zeros(len(span)), where=span > 0)
    shape = (-1,) + (1,) * (times_s.ndim - 1)
    return times_s - (ahead[:, 0].reshape(shape) + drift.reshape(shape)
                      * (times_s - at[:, 0].reshape(shape)))
