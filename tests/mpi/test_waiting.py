"""Waiting for a rank that comes late."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from hpcpar.calibrate.link_probe import Steps
from hpcpar.comm import backoff as patience
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.crowd import crowded
from hpcpar.comm.turns import Turns
from hpcpar.comm.world import world
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind

#: What a rank that computes is busy for (s).
BUSY_S = 0.3


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_whoever_waits_long_leaves_the_core_to_others(algorithm: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 comes late: the others sleep longer after a while; not in a collective of the library,
    which may need every poll.
    """
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to wait for")
    backend = NumpyBackend()
    steps = Steps(Communicator(ranks, backend))
    transfer = steps.bind(Kind.ALLREDUCE, algorithm, Config(n=ranks.size), "n", 4096)
    ranks.barrier()
    sleep, slept, yielded = time.sleep, list[float](), list[bool]()
    if ranks.rank == 0:
        sleep(0.5)

    def recorded(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(patience.time, "sleep", recorded)
    monkeypatch.setattr(patience.os, "sched_yield", lambda: yielded.append(not slept))
    steps.communicator.start(transfer)
    steps.communicator.wait(transfer)
    if ranks.rank:
        if steps.communicator.patience.turns:
            assert not yielded
        else:
            assert slept[0] == patience.SHORT_S and sum(yielded) + 1 == patience.YIELDS
        assert (patience.LONG_S in slept) == (algorithm == "ring")


def test_what_is_complete_is_looked_at_no_more() -> None:
    """A pipeline has many messages in flight, and looks after all of them between steps."""
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to wait for")
    steps = Steps(Communicator(ranks, NumpyBackend()))
    transfer = steps.bind(Kind.ALLREDUCE, "ring", Config(n=ranks.size), "n", 4096)
    looked: list[bool] = []
    progress = transfer.progress

    def counted() -> bool:
        looked.append(progress())
        return looked[-1]

    transfer.progress = counted  # type: ignore[method-assign]
    for _ in range(2):  # and again in the next iteration
        looked.clear()
        steps.communicator.start(transfer)
        while True not in looked:
            steps.communicator.progress()
        seen = len(looked)
        steps.communicator.progress()
        assert len(looked) == seen
        steps.communicator.wait(transfer)


@pytest.fixture
def one_core() -> Iterator[None]:
    """All ranks on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(world().comm.allgather(min(allowed)))})
    yield
    os.sched_setaffinity(0, allowed)


def test_a_rank_that_computes_has_its_core_to_itself(one_core: None) -> None:
    """Rank 0 computes: the others hardly look, until it hands the core on; then all look again and
    again.
    """
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to hand the core on to")
    turns = Turns(ranks, dict.fromkeys(range(ranks.size), 0))
    assert sorted([ranks.rank, *turns.mates]) == list(range(ranks.size))
    ranks.barrier()
    begin, used = time.perf_counter(), time.process_time()
    if ranks.rank == 0:
        while time.perf_counter() - begin < BUSY_S:
            pass
        assert time.process_time() - used > BUSY_S / 2
    else:
        while time.perf_counter() - begin < BUSY_S:
            turns.hand_on()
        # a look in two milliseconds
        assert time.process_time() - used < BUSY_S / 8
    ranks.barrier()
    begin, looks = time.perf_counter(), 0
    while time.perf_counter() - begin < BUSY_S:
        turns.hand_on()
        looks += 1
    # far more often than if nobody handed the core on
    assert looks > 2 * BUSY_S / 2e-3
    ranks.barrier()


def test_each_rank_of_a_crowd_has_one_core() -> None:
    ranks = world()
    crowd = crowded(ranks, NumpyBackend())
    if not crowd.ranks:
        pytest.skip("as many cores as ranks")
    Communicator(ranks, NumpyBackend())
    mine = os.sched_getaffinity(0)
    everybody = ranks.comm.allgather(sorted(mine))
    counts = [everybody.count([core]) for core in {c for cores in everybody for c in cores}]
    assert len(mine) == 1 and crowd.at_once == crowd.ranks / max(counts)
