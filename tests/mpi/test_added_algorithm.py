"""A collective algorithm that is registered with its rounds alone is executed and traced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import World, world
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.strategies import configurations
from hpcpar.schedule.algorithms.base import Algorithm
from hpcpar.schedule.steps import Group, Kind
from tests.added import Pairwise, Star, added
from tests.mpi.comparison import CHOOSERS, check, facts
from tests.mpi.movements import move
from tests.mpi.networks import FIXED
from tests.mpi.test_collectives import case

P = world().size


@pytest.mark.parametrize("algorithm", [Star, Pairwise], ids=lambda a: a.name)
def test_an_added_algorithm_sums_as_numpy_does(algorithm: type[Algorithm], ranks: World,
                                               communicator: Communicator) -> None:
    with added(algorithm):
        made = case(Kind.ALLREDUCE, Group((MeshAxis(1, P),)), "random", 3)
        step = replace(made.step, algorithm=algorithm.name)
        found = move(communicator, step, made.source_box(ranks.rank))
    np.testing.assert_allclose(found, made.expected(ranks.rank), rtol=0, atol=1e-13 * P)


def test_an_added_algorithm_trains(communicator: Communicator,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHOOSERS, "star", lambda step: (
        "star" if step.pattern.kind is Kind.ALLREDUCE else "direct", 1))
    network = facts(FIXED[0]).network
    spec = NetworkSpec(network.name, network.image_shape, network.classes)
    plan = Plan(spec, P, facts(FIXED[0]).batch, "data", configurations(network, "data", P, "lazy"),
                precision="fp64")
    with added(Star):
        check(FIXED[0], plan, "star", communicator, "star")
