"""Layers from outside the package train under every cut as PyTorch does."""

from __future__ import annotations

import numpy as np
import pytest
from comparison import check, facts
from plans import random_plan, staged_plan

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import InputError
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, named, plan_options

P = world().size
pytestmark = pytest.mark.skipif(P > 4, reason="every cut occurs on 1 to 4 ranks")


@pytest.mark.parametrize("strategy", [*named(P), *(f"{s}/outer" for s in named(P) if "grid" in s)])
def test_every_strategy(strategy: str, communicator: Communicator) -> None:
    network = facts("own").network
    batch = 2 * P * P
    try:
        configs = configurations(network, strategy, P)
    except InputError as err:
        pytest.skip(f"the network has too few rows, channels or layers: {err}")
    plan = Plan(NetworkSpec.of(network), P, batch, strategy, configs, dtype="float64",
                **plan_options(strategy, P, batch))
    check(f"own@{batch}", plan, "ring", communicator, strategy, 2)


@pytest.mark.parametrize("seed", range(8))
def test_random_plans(seed: int, communicator: Communicator) -> None:
    given = facts("own")
    plan = random_plan(given.network, given.batch, P, np.random.default_rng([seed, P, 39]))
    check("own", plan, ("ring", "tree")[seed % 2], communicator, f"random plan {seed}", 2)


@pytest.mark.skipif(P == 1, reason="a pipeline has several ranks")
def test_pipeline(communicator: Communicator) -> None:
    given = facts("own")
    plan = staged_plan(given.network, given.batch, P, np.random.default_rng([P, 39]))
    check("own", plan, "ring", communicator, "pipeline", 2)
