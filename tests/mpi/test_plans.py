"""Any network under any plan equals the serial run: outputs, gradients, weights, running
statistics, and trace equals schedule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from comparison import CHOOSERS, check, facts
from networks import FIXED, MORE, graph_seeds
from plans import random_plan, staged_plan
from skips import CUTS, skip_plan

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.plan.plan import NetworkSpec, Overlap, PipelineOrder, Plan
from hpcpar.plan.strategies import configurations, plan_options

P = world().size
#: Random (network, plan) pairs on this number of ranks: on all together more than 200, some of them
#: of one network.
COUNT = {1: 26, 2: 38, 3: 34, 4: 24, 6: 10, 8: 6}.get(P, 6)
NAMES = [f"graph-{seed}" for seed in graph_seeds(100 * P, COUNT)]
#: As many ranks share few cores, not every built-in network on each number of ranks.
BUILT_IN = MORE if P <= 4 else MORE[1 - P % 4 // 2 :: 2]
CHAINS = [f"random-{seed}" for seed in range(5000 + 100 * P, 5000 + 100 * P + COUNT // 2)]
UNETS = [f"unet-{seed}" for seed in range(100 * P, 100 * P + COUNT // 2)]


def algorithms(number: int) -> str:
    return list(CHOOSERS)[number % len(CHOOSERS)]


@pytest.mark.parametrize("name", [*NAMES, *CHAINS])
def test_random_plans(name: str, communicator: Communicator) -> None:
    number = int(name.split("-")[1])
    given = facts(name)
    plan = random_plan(given.network, given.batch, P, np.random.default_rng([number, P]))
    check(name, plan, algorithms(number), communicator, "random plan", 2)


@pytest.mark.parametrize("name", UNETS)
def test_random_unets(name: str, communicator: Communicator) -> None:
    """Transposed convolutions, interpolation, padding of all kinds and a loss over pixels."""
    number = int(name.split("-")[1])
    given = facts(name)
    rng = np.random.default_rng([number, P, 25])
    check(name, random_plan(given.network, given.batch, P, rng), algorithms(number), communicator,
          "random plan", 2)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_networks(name: str, communicator: Communicator) -> None:
    given = facts(name)
    for k in range(2 if P <= 3 else 1):
        plan = random_plan(given.network, given.batch, P, np.random.default_rng([k, P, len(name)]))
        check(name, plan, algorithms(k), communicator, f"random plan {k}", 2)


@pytest.mark.skipif(P == 1, reason="a pipeline has several ranks")
@pytest.mark.parametrize("name", [*NAMES[: COUNT // 3], "lenet5", *BUILT_IN])
def test_pipelines(name: str, communicator: Communicator) -> None:
    given = facts(name)
    plan = staged_plan(given.network, given.batch, P, np.random.default_rng([len(name), P, 3]))
    check(name, plan, "ring", communicator, "pipeline", 2)


@pytest.mark.skipif(P < 3, reason="movements within a stage and between stages")
@pytest.mark.parametrize("order", PipelineOrder)
@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.FULL])
@pytest.mark.parametrize(("name", "cuts"), CUTS)
def test_residual_branches_across_cuts(name: str, cuts: tuple[str, ...], overlap: Overlap,
                                       order: PipelineOrder, communicator: Communicator) -> None:
    """Movements within a stage end in time, whatever else crosses the cut."""
    given = facts(name)
    plan = skip_plan(given.network, given.batch, P, cuts, overlap, order)
    check(name, plan, "ring", communicator, "pipeline", 1)


@pytest.mark.skipif(P == 1, reason="one rank has no fc_passes to take")
@pytest.mark.parametrize("strategy", ["owt-b", "owt-c"])
def test_variable_batch_size(strategy: str, communicator: Communicator) -> None:
    """One weird trick: the fully connected layers take the batch in fc_passes, with an update after
    each.
    """
    for name in (FIXED[0], FIXED[1], CHAINS[0])[: 3 if P <= 4 else 1]:
        name, batch = f"{name}@{P * P}", P * P
        network = facts(name).network
        options = plan_options(strategy, P, batch)
        spec = NetworkSpec(network.name, network.image_shape, network.classes)
        for overlap in ("none", "full"):
            plan = Plan(spec, P, batch, strategy, configurations(network, strategy, P),
                        dtype="float64", overlap=overlap, **options)
            check(name, plan, "ring", communicator, strategy, 2)


@pytest.mark.parametrize("name", [FIXED[0], "resnet"])
def test_adam(name: str, communicator: Communicator) -> None:
    """In all ways of keeping weights alike: every rank the whole state, a shard of it, or the
    server alone.
    """
    given = facts(name)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    for synchronisation in ("allreduce", "sharded", "server")[: 1 if P > 4 else None]:
        plan = Plan(spec, P, given.batch, "data", configurations(given.network, "data", P),
                    dtype="float64", optimizer="adam",
                    synchronisation=synchronisation)
        check(name, replace(plan, microbatches=2 if name == "lenet5" else 1), "ring", communicator,
              f"adam, {synchronisation}", 3)
