"""A stage that lags behind: what the stage before has computed waits to be sent, and is not
overwritten meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, SoftmaxCrossEntropy
from hpcpar.plan.boxes import local
from hpcpar.plan.config import Config
from hpcpar.plan.plan import NetworkSpec, PipelineOrder, Plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.mpi.comparison import CHOOSERS
from tests.mpi.networks import sample
from tests.mpi.sharing import allgather

P = world().size
BATCH = 8
#: Seconds by which the last rank delays each of its steps.
LAG_S = 0.002
#: The layers of the first stage.
FIRST = {"after the input": ("input",), "after a convolution": ("input", "conv", "relu")}

pytestmark = pytest.mark.skipif(P == 1, reason="one rank has one stage")


def network() -> Network:
    """Activations that a library does not copy aside: 128 KiB and more of each sample."""
    net = Chain("wide", (4, 64, 64)).add(Conv2d, "conv", out_channels=4, kernel=(3, 3),
                                         padding=(1, 1)).add(ReLU, "relu")
    net.add(MaxPool2d, "pool", kernel=(8, 8),
            stride=(8, 8)).add(Flatten, "flatten").add(Linear, "fc", out_features=3)
    return net.add(SoftmaxCrossEntropy, "loss").build()


def late(action: Callable[[], Any]) -> Callable[[], None]:
    """The same, later."""

    def run() -> None:
        time.sleep(LAG_S)
        action()

    return run


def losses(net: Network, plan: Plan, communicator: Communicator, lagging: bool) -> list[float]:
    """Losses of an evaluation, two training steps and another evaluation."""
    executor = Executor(net, plan, lower(net, plan, CHOOSERS["ring"]), communicator, backend("cpu"),
                        1,
                        lower(net, plan, CHOOSERS["ring"], training=False))
    for program in (executor.training, executor.evaluation):
        assert program is not None
        if lagging and communicator.world.rank == P - 1:
            program.actions = {i: late(action) for i, action in program.actions.items()}
    rng = np.random.default_rng(2)
    batches = [sample(net, BATCH, rng) for _ in range(4)]
    pixels = local(executor.image_box, tuple((0, n) for n in net.image_shape))
    out = []
    for i, (images, labels) in enumerate(batches):
        mine = images[(executor.image_rows, *pixels)]
        out.append((executor.iterate(mine, labels, i, 0.01, 0.9, 0.0) if i in (1, 2)
                    else executor.evaluate(mine, labels))[0])
    return out


@pytest.mark.parametrize("order", PipelineOrder)
@pytest.mark.parametrize("where", FIRST)
def test_unsent_messages_are_not_overwritten(where: str, order: str,
                                             communicator: Communicator) -> None:
    net = network()
    alike = Plan(NetworkSpec(net.name, net.image_shape, net.classes), P, BATCH, "data",
                 {layer.name: Config(replicas=P) for layer in net.layers}, precision="fp64",
                 order=order, microbatches=BATCH)
    staged = {layer.name: Config(first=0 if layer.name in FIRST[where] else P - 1)
              for layer in net.layers}
    expected = losses(net, alike, communicator, False)
    found = losses(net, replace(alike, strategy="pipeline", configs=staged), communicator, True)
    everyone = allgather(world(), found)
    np.testing.assert_allclose(everyone, [expected] * P, rtol=1e-12)
