"""A strategy and an optimizer from outside the package train as serial PyTorch does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.plan.strategy import grid_sizes
from tests import outside
from tests.mpi.comparison import check, facts

P = world().size


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with outside.registered():
        yield


@pytest.mark.parametrize("synchronization", ["allreduce", "sharded", "server"])
@pytest.mark.parametrize("name", ["lenet5", "resnet"])
def test_outside_strategies_and_optimizers_train_as_one_rank(name: str, synchronization: str,
                                                             communicator: Communicator) -> None:
    given = facts(name)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    for number, grid in enumerate(grid_sizes(P)[:3]):
        strategy = "halves:" + "x".join(map(str, grid)) + "/outer" * (number % 2)
        plan = make_plan(spec, strategy, P, given.batch, network=given.network, precision="fp64",
                         optimizer="nesterov", synchronization=synchronization)
        check(name, plan, "ring", communicator, f"{strategy}, nesterov, {synchronization}", 3)
