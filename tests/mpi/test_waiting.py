"""Waiting for a rank that comes late."""

from __future__ import annotations

import time

import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.plan.config import Config
from hpcpar.schedule.steps import Kind
from hpcpar.train.links import Steps


def test_whoever_waits_long_leaves_the_core_to_others() -> None:
    """Rank 0 comes late: the others sleep most of the time until it does."""
    ranks = world()
    if ranks.size == 1:
        pytest.skip("nobody to wait for")
    steps = Steps(Communicator(ranks, NumpyBackend()))
    transfer = steps.bind(Kind.ALLREDUCE, "ring", Config(n=ranks.size), "n", 4096)
    ranks.barrier()
    if ranks.rank == 0:
        time.sleep(0.5)
    begin, used = time.perf_counter(), time.process_time()
    steps.communicator.start(transfer)
    steps.communicator.wait(transfer)
    lasted, used = time.perf_counter() - begin, time.process_time() - used
    assert ranks.rank == 0 or (lasted > 0.4 and used < 0.5 * lasted)
