"""Waiting for a late sender."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcpar.calibrate.link_probe import Steps
from hpcpar.comm import backoff
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.world import world
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind
from tests.mpi.sharing import rest

#: A tag that no step uses.
SLEPT = 7
#: Short sleeps that take twice as long as it takes until sleeps are long.
MANY = int(2 * backoff.LONG_S / backoff.SLEEP_FRACTION / backoff.SHORT_S)


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_a_rank_that_waits_long_yields_its_core(algorithm: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 comes late, after the others have slept long: they sleep longer after a while.

    Not in a collective of the library, which may need every poll.
    """
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to wait for")
    backend = NumpyBackend()
    steps = Steps(Communicator(ranks, backend))
    transfer = steps.bind(Kind.ALLREDUCE, algorithm, Config(n=ranks.size), "n", 4096)
    ranks.barrier()
    slept, yielded = list[float](), list[bool]()
    word, sent = np.zeros(1), list[Any]()
    if ranks.rank == 0:
        for other in range(1, ranks.size):
            rest(ranks.comm.Irecv(word, source=other, tag=SLEPT))

    def recorded(seconds: float) -> None:
        slept.append(seconds)
        if not sent and (seconds == backoff.LONG_S or len(slept) == MANY):
            sent.append(ranks.comm.Isend(word, dest=0, tag=SLEPT))
        time.sleep(seconds)

    # the module's own names: the watchdog's thread sleeps too, by the `time` that all share
    monkeypatch.setattr(backoff, "time", SimpleNamespace(sleep=recorded))
    monkeypatch.setattr(backoff, "os",
                        SimpleNamespace(sched_yield=lambda: yielded.append(not slept)))
    steps.communicator.start(transfer)
    steps.communicator.wait(transfer)
    for request in sent:
        rest(request)
    shared = fullest_node(ranks, "cpu").shared
    yields = backoff.YIELDS_SHARED if shared else backoff.YIELDS
    if ranks.rank:
        assert slept[0] == backoff.SHORT_S and sum(yielded) + 1 == yields
        assert (backoff.LONG_S in slept) == (algorithm == "ring")


def test_completed_requests_are_not_polled() -> None:
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
