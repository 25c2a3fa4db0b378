"""Waiting for a rank that comes late."""

from __future__ import annotations

import time

import pytest

from hpcpar.comm import patience
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind
from hpcpar.train.links import Steps


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_whoever_waits_long_leaves_the_core_to_others(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 comes late: the others sleep longer after a while; not in a collective of the library, which may need every poll."""
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to wait for")
    backend = NumpyBackend()
    steps = Steps(Communicator(ranks, backend))
    crowd = patience.crowded(ranks, backend).ranks > 0
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
        assert slept[0] == patience.SHORT_S
        # with fewer cores than ranks sooner
        assert sum(yielded) + 1 == (patience.YIELDS_IN_A_CROWD if crowd else patience.YIELDS)
        assert (patience.LONG_S in slept) == (algorithm == "ring")
