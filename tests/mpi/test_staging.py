"""Arrays that are not the host's go through host buffers: the path of GPU tensors, with a device
that is only pretended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.calibrate.link_probe import Steps
from hpcpar.comm import trace
from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.comm.world import world
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.network.builtin import network
from hpcpar.plan.boxes import local
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Algorithm, Kind
from tests.strategies import one_pass


class DeviceArray(np.ndarray):
    """An array that is not on the host as far as the communicator can see."""


class PretendedGpu(NumpyBackend):
    """NumPy's kernels on arrays that must be staged."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.empty(shape, dtype).view(DeviceArray)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype).view(DeviceArray)


def _losses(backend: NumpyBackend, strategy: str, direct: bool) -> list[float]:
    w = world()
    spec = NetworkSpec("lenet5", (1, 9, 9), 10)
    net = network("lenet5", (1, 9, 9), 10)
    plan = make_plan(spec, strategy, w.size, 6, dtype="float64")
    schedule = lower(net, plan, lambda step: ("ring", 2))
    communicator = Communicator(w, backend, direct)
    executor = Executor(net, plan, schedule, communicator, backend, 5)
    if isinstance(backend, PretendedGpu) and not direct:
        for step in schedule.comms:
            transfer = executor.training.transfers[step.index]
            assert isinstance(transfer, Transfer)
            assert type(transfer.buffers.wire) is np.ndarray, "messages must lie in host memory"
    rng = np.random.default_rng(1)
    out = []
    for i in range(3):
        images, labels = rng.standard_normal((6, 1, 9, 9)), rng.integers(0, 10, 6)
        communicator.trace.clear()
        whole = tuple((0, n) for n in images.shape)
        pixels = local(executor.image_box, whole[1:])
        mine = images[(executor.image_rows, *pixels)], labels
        out.append(executor.iterate(*mine, i, 0.05, 0.9, 0.0)[0])
        trace.check(communicator.trace, schedule, w.rank)
    return out


@pytest.mark.parametrize("direct", [False, True])
def test_links_are_measured_as_runs_use_them(direct: bool) -> None:
    """A calibration's buffers are the device's: staged, or handed to MPI."""
    w = world()
    steps = Steps(Communicator(w, PretendedGpu(), direct))
    for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCE_SCATTER) if w.size > 1 else ():
        transfer = steps.bind(kind, Algorithm.RING, Config(n=w.size), "n", 4096)
        assert isinstance(transfer, Transfer) and transfer.buffers.on_device is direct
        steps.communicator.start(transfer)
        steps.communicator.wait(transfer)


@pytest.mark.parametrize("direct", [False, True])
def test_staged_training_equals_host_training(direct: bool) -> None:
    for strategy in one_pass(world().size):
        assert _losses(PretendedGpu(), strategy, direct) == _losses(NumpyBackend(), strategy, False)
