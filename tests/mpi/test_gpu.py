"""Training by the GPU's backend equals serial training, on a pretended GPU (tests/pretended): its
kernels, its streams, and the ways of its messages.

Work is done as late as the streams' order allows, so a wait that is missing shows here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import check, facts

from hpcpar.calibrate.link_probe import Steps
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, Overlap, make_plan
from hpcpar.schedule.steps import Algorithm, Kind
from tests.strategies import one_pass

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretended"))

P = world().size


@pytest.fixture(scope="module")
def gpu() -> Any:
    return backend("gpu")


@pytest.fixture(params=list(Transport))
def gpu_communicator(request: pytest.FixtureRequest, gpu: Any) -> Communicator:
    return Communicator(world(), gpu, request.param)


def plan_of(name: str, strategy: str, overlap: str) -> Any:
    network = facts(name).network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    return make_plan(spec, strategy, P, facts(name).batch, dtype="float64", overlap=overlap)


@pytest.mark.parametrize("collectives", ["ring, 3 segments", "halving", "mpi"])
def test_every_strategy(collectives: str, gpu_communicator: Communicator) -> None:
    for number, strategy in enumerate(one_pass(P)):
        overlap = list(Overlap)[number % len(Overlap)]
        check("lenet5", plan_of("lenet5", strategy, overlap), collectives, gpu_communicator,
              f"{strategy} on a GPU", steps=2)


def test_links_are_measured_as_runs_use_them(gpu_communicator: Communicator) -> None:
    """A calibration's buffers are the device's: staged, or handed to MPI."""
    steps = Steps(gpu_communicator)
    for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER) if P > 1 else ():
        transfer = steps.bind(kind, Algorithm.RING, Config(n=P), "n", 4096)
        staged = gpu_communicator.transport is Transport.STAGED
        assert transfer.buffers.staged is staged
        assert (type(transfer.buffers.wire) is np.ndarray) is staged
        gpu_communicator.start(transfer)
        gpu_communicator.wait(transfer)
