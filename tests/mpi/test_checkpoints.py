"""Weights, running statistics and the optimizer's state survive a change of the plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.kernels import backend
from hpcpar.plan.boxes import local
from hpcpar.plan.plan import Plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.train import checkpoint, global_tensors
from hpcpar.train.checkpoint import CheckpointState
from tests.mpi.comparison import CHOOSERS, facts, rates
from tests.mpi.plans import random_plan

P = world().size


def executor(name: str, seed: int, communicator: Communicator) -> Executor:
    """A network under a random plan."""
    network, batch = facts(name).network, facts(name).batch
    plan: Plan = random_plan(network, batch, P, np.random.default_rng([seed, P]))
    return Executor(network, plan, lower(network, plan, CHOOSERS["ring"]), communicator,
                    backend("cpu"), seed)


def tensors(made: Executor, ranks: World) -> dict[str, np.ndarray]:
    """Global tensors, on rank 0."""
    return dict(global_tensors.weights(made, ranks))


@pytest.mark.skipif(P > 3, reason="more ranks add nothing here")
@pytest.mark.parametrize("name", ["norms", "norms of volumes"])
def test_normalizations_resume_under_another_plan(name: str, communicator: Communicator,
                                                  ranks: World, tmp_path: Path) -> None:
    given = facts(name)
    first, second = executor(name, 1, communicator), executor(name, 2, communicator)
    pixels = local(first.image_box, tuple((0, n) for n in given.network.image_shape))
    first.iterate(given.images[0][(first.image_rows, *pixels)], given.targets[0], 0,
                  *rates(given.network, first.plan))
    before = tensors(first, ranks)
    state = dict(global_tensors.state(first, ranks))
    path = str(ranks.bcast(tmp_path) / "c.h5")
    if ranks.rank == 0:
        now = CheckpointState(1, 0, 1, 1, given.network.name, tuple(given.network.image_shape),
                              given.network.classes)
        checkpoint.write(path, checkpoint.image(before.items(), state.items(), now))
    ranks.bcast(0)
    checkpoint.check(path, given.network, first.rule.optimizer.state)
    for layer, p in second.parameters.items():
        names = checkpoint.tensor_shapes(given.network, given.network.by_name[layer],
                                         second.rule.optimizer.state)
        global_tensors.restore(second, p, checkpoint.resume_rows(path, layer, p.start, p.stop,
                                                                 "float64", names))
    after = tensors(second, ranks)
    assert before.keys() == after.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)
    if ranks.rank == 0 and name == "norms":
        assert "norm3/weight" not in before and "norm3/running_mean" in before
        assert before["norm2/bias"].shape == given.network.shapes["norm2"]
        assert "norm1/weight" not in before and before["norm0/weight"].shape == (8,)
