"""Training that computes activations again in the backward pass is the same training, to the bit,
and needs less memory.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.world import world
from hpcpar.kernels import backend
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.runtime.executor import Executor
from hpcpar.schedule.lower import lower
from hpcpar.schedule.recompute import recompute
from hpcpar.schedule.steps import Comm, Phase
from tests.mpi.comparison import CHOOSERS, SEED, check, facts

P = world().size
#: Strategy, other options, segments.
PLANS = [("data", {}, 4), ("spatial", {}, 3), ("filter", {"overlap": "none"}, 3),
         ("data", {"microbatches": 2}, 2)]
if P > 1:
    PLANS.append((f"pipeline:{P}x1", {"microbatches": 4, "order": "1f1b"}, 1))


# many ranks share few cores
@pytest.mark.parametrize("network", ["resnet@8", "lenet5@8"] if P <= 4 else ["lenet5@8"])
def test_recomputation_changes_no_bit(network: str, communicator: Communicator) -> None:
    given = facts(network)
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    for strategy, options, segments in PLANS:
        plan = make_plan(spec, strategy, P, given.batch, network=given.network, precision="fp64",
                         **options)
        again = replace(plan, recompute=segments)
        what = f"{strategy}, {options}"
        # a stage of two layers keeps all that it has
        assert recompute(given.network, again).layers or (options.get("order") == "1f1b"
                                                         and network != "resnet@8"), what
        one, two = (check(network, p, "ring", communicator, what, 2) for p in (plan, again))
        assert one.losses == two.losses, what
        assert all((one.weights[name] == two.weights[name]).all() for name in one.weights), what


def test_recomputation_saves_memory_and_moves_the_same(communicator: Communicator) -> None:
    """Blocks take less than two thirds; halos travel again."""
    given = facts("resnet@8")
    spec = NetworkSpec(given.network.name, given.network.image_shape, given.network.classes)
    held, moved = [], []
    for strategy in ("data", "spatial"):
        for segments in (0, 4):
            plan = make_plan(spec, strategy, P, given.batch, network=given.network,
                             precision="fp64", recompute=segments)
            schedule = lower(given.network, plan, CHOOSERS["ring"])
            made = Executor(given.network, plan, schedule, communicator, backend("cpu"), SEED)
            held.append(made.memory.alive_bytes)
            moved.append(sum(isinstance(s, Comm) and s.phase is Phase.RECOMPUTE
                             for s in schedule.steps))
    assert held[1] < 2 / 3 * held[0] and held[3] < held[2]
    assert moved[:3] == [0, 0, 0] and (moved[3] > 0) == (P > 1)
