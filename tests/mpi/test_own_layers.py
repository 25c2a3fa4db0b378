"""Layers from outside the package, and those that move values or have a channel's numbers, train
under every cut as PyTorch does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from tests.mpi.comparison import CHOOSERS, check, facts
from tests.mpi.plans import random_plan, staged_plan
from tests.strategies import named

P = world().size
pytestmark = pytest.mark.skipif(P > 4, reason="every cut occurs on 1 to 4 ranks")


@pytest.mark.parametrize("name", ["own", "moves", "channelwise"])
@pytest.mark.parametrize("strategy", [*named(P), *(f"{s}/outer" for s in named(P) if "grid" in s)])
def test_every_strategy_trains_outside_layers(strategy: str, name: str,
                                              communicator: Communicator) -> None:
    network = facts(name).network
    batch = 2 * P * P
    try:
        configs = configurations(network, strategy, P)
    except InputError as err:
        pytest.skip(f"the network has too few rows, channels or layers: {err}")
    if name == "moves" and plan_options(strategy, P, batch).get("fc_passes", 1) > 1:
        pytest.skip("FC passes are compared where no image follows the features")
    plan = Plan(NetworkSpec.of(network), P, batch, strategy, configs, precision="fp64",
                **plan_options(strategy, P, batch))
    check(f"{name}@{batch}", plan, "ring", communicator, strategy, 2)


@pytest.mark.parametrize("seed", range(8))
def test_random_plans_train_outside_layers(seed: int, communicator: Communicator) -> None:
    given = facts("own")
    plan = random_plan(given.network, given.batch, P, np.random.default_rng([seed, P, 39]))
    check("own", plan, ("ring", "tree")[seed % 2], communicator, f"random plan {seed}", 2)


@dataclass(frozen=True)
class Nothing(Layer):
    """A layer without an operator."""

    kind: ClassVar[str] = "nothing"


def test_a_layer_without_operator_is_refused_on_every_rank(communicator: Communicator) -> None:
    """Also on ranks of a pipeline on which it does not live."""
    given = facts("own")
    layers = tuple(Nothing("plus3", layer.inputs) if layer.name == "plus3" else layer
                   for layer in given.network.layers)
    network = Network("own", layers)
    pipeline = configurations(network, f"pipeline:{P}x1", P)
    plan = Plan(NetworkSpec.of(network), P, P, f"pipeline:{P}x1", pipeline)
    with pytest.raises(InputError, match="layer 'plus3' is a Nothing, but no operator computes it"):
        Executor(network, plan, lower(network, plan, CHOOSERS["ring"]), communicator,
                 communicator.backend, 0)


@pytest.mark.skipif(P == 1, reason="a pipeline has several ranks")
def test_pipelines_train_outside_layers(communicator: Communicator) -> None:
    given = facts("own")
    plan = staged_plan(given.network, given.batch, P, np.random.default_rng([P, 39]))
    check("own", plan, "ring", communicator, "pipeline", 2)
