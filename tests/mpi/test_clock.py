"""The ranks' clocks: where ranks share a node the truth is known, for they share its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from hpcpar.comm import clock_sync as clock
from hpcpar.comm.world import World, world
from hpcpar.runtime.stamps import Stamps

#: By how much rank r's clock is ahead, times r, and how much faster it runs (s, 1).
AHEAD_S, DRIFT = 2.5, 1e-4

pytestmark = pytest.mark.skipif(len(set(world().comm.allgather(world().hostname))) > 1,
                                reason="ranks on several nodes share no clock")


def planted(rank: int) -> Callable[[], float]:
    return lambda: time.perf_counter() * (1 + DRIFT * rank) + AHEAD_S * rank


def test_planted_clock_offsets_are_found(ranks: World) -> None:
    found = clock.read(ranks, planted(ranks.rank))
    assert (found is None) == (ranks.rank > 0)
    if found is None:
        return
    number = np.arange(ranks.size)
    base = (found[:, 0] - AHEAD_S * number) / (1 + DRIFT * number)
    truth = AHEAD_S * number + DRIFT * number * base
    # rank 0's own clock lies in the middle of the round trip at best: its half bounds the error
    assert (np.abs(found[:, 1] - truth) <= found[:, 2] / 2 + 1e-6).all(), (found, truth)
    assert found[0, 1] == found[0, 2] == 0 and (found[1:, 2] > 0).all()


def test_events_of_all_ranks_get_the_times_of_one_clock(ranks: World) -> None:
    """Ranks note the time on clocks that are seconds apart: on one clock the times are right."""
    tell = planted(ranks.rank)
    first = clock.read(ranks, tell)
    ranks.barrier()
    noted = tell()
    last, times = clock.read(ranks, tell), ranks.gather(noted)
    if first is None or last is None or times is None:
        return
    common = clock.common(np.array(times)[:, None], np.stack([first, last], axis=1))[:, 0]
    number = np.arange(ranks.size)
    truth = (np.array(times) - AHEAD_S * number) / (1 + DRIFT * number)
    bound = np.maximum(first[:, 2], last[:, 2]) / 2 + 1e-6
    assert (np.abs(common - truth) <= bound).all(), (common, truth, bound)


def test_other_messages_are_left_alone(ranks: World) -> None:
    """A message that waits for its receiver meanwhile is not taken."""
    if ranks.size == 1:
        pytest.skip("one rank sends no messages")
    peer, box = (ranks.rank + 1) % ranks.size, np.zeros(1)
    sent = ranks.comm.Isend(np.full(1, float(ranks.rank)), dest=peer, tag=3)
    Stamps(ranks, 1).clocks()
    ranks.comm.Recv(box, source=(ranks.rank - 1) % ranks.size, tag=3)
    sent.Wait()
    assert box[0] == (ranks.rank - 1) % ranks.size
