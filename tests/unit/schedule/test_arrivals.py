"""When movements of pipelines end: before their receivers read what they bring, and not while
another micro-batch passes.
"""

from __future__ import annotations

import numpy as np
import pytest

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Overlap, PipelineOrder, Plan
from hpcpar.schedule.lower import lower
from hpcpar.schedule.steps import Comm, Compute, Op, Phase, Role, Schedule
from tests.mpi.networks import by_name, graph_seeds
from tests.mpi.plans import staged_plan
from tests.mpi.skips import CUTS, skip_plan

ORDERS = [(overlap, order) for overlap in Overlap for order in PipelineOrder]


def first_reader(network: Network, schedule: Schedule, moved: Comm) -> int:
    """The first step that reads a moved input, or adds or reads its gradient."""
    of_same_pass = [s for s in schedule.steps[moved.index + 1:]
                    if s.part == moved.part and s.phase is moved.phase]
    if not moved.tensor.gradient:
        return next(s.index for s in of_same_pass if isinstance(s, Compute)
                    and s.layer == moved.layer and s.op is not Op.INTERIOR)
    producer = network.by_name[moved.layer].inputs[moved.tensor.input]
    readers = [s for s in of_same_pass if s.layer == producer and isinstance(s, Compute)]
    added = [s.index for s in readers if s.op is Op.ACCUMULATE and s.tensor is not None
             and (s.tensor.layer, s.tensor.input) == (moved.layer, moved.tensor.input)]
    return added[0] if added else readers[0].index


def last_before(plan: Plan, schedule: Schedule, moved: Comm) -> int:
    """The receiver's last step of that pass of the micro-batch before; -1 for the first."""
    return max((s.index for s in schedule.steps if isinstance(s, Compute)
                and plan.configs[s.layer].first == moved.destination.config.first
                and s.part == moved.part - 1 and s.phase is moved.phase), default=-1)


def check(network: Network, plan: Plan) -> None:
    schedule = lower(network, plan, lambda step: ("ring", 1))
    for c in schedule.comms:
        if c.phase not in (Phase.FORWARD, Phase.BACKWARD) or c.tensor.role is not Role.INPUT:
            continue
        assert c.index < c.needed_by <= first_reader(network, schedule, c), c.label
        if c.between:
            assert c.needed_by > last_before(plan, schedule, c), c.label


@pytest.mark.parametrize(("overlap", "order"), ORDERS)
@pytest.mark.parametrize(("name", "cuts"), CUTS)
def test_residual_branches_across_cuts(name: str, cuts: tuple[str, ...], overlap: Overlap,
                                       order: PipelineOrder) -> None:
    network, batch = by_name(name)
    check(network, skip_plan(network, batch, 4, cuts, overlap, order))


@pytest.mark.parametrize("name", ["resnet", "norms of volumes",
                                  *(f"graph-{seed}" for seed in graph_seeds(0, 20))])
def test_random_pipelines(name: str) -> None:
    network, batch = by_name(name)
    for seed in range(8):
        check(network, staged_plan(network, batch, 4, np.random.default_rng(seed)))
