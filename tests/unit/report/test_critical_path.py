"""The critical path of an iteration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.report.critical_path import critical_path
from hpcpar.report.late_senders import _last_of_others, partners
from hpcpar.schedule.steps import Comm
from hpcpar.simulation.noise import Noise
from hpcpar.simulation.simulate import Simulator

LOCAL = files.load("local")


@pytest.mark.parametrize("strategy", ["data", "filter", "spatial", "grid-fc:2x2", "pipeline:2x2"])
def test_the_path_fills_the_iteration_without_a_gap(strategy: str) -> None:
    plan = make_plan(NetworkSpec("vgg16", (3, 32, 32), 16), strategy, 4, 16,
                     machine=LOCAL)
    network = plan.network.build()
    schedule = schedule_for(network, plan)
    slow = np.array([1.0, 1.0, 1.5, 1.0])
    played = Simulator(network, plan, LOCAL).play(Noise(0.05, slow))
    path = critical_path(schedule, played.start_s, played.end_s)
    assert sum(piece.seconds for piece in path) == pytest.approx(np.nanmax(played.end_s))
    for before, after in itertools.pairwise(path):
        # the earlier one ends on the rank that the later one begins on, or is the partner's
        step = schedule.steps[before.step]
        ranks = {before.rank, *partners(step, before.rank)} if isinstance(step, Comm) else {
            before.rank}
        assert after.rank in ranks
    on_slow = sum(piece.seconds for piece in path if piece.rank == 2)
    assert on_slow > 0.4 * played.mean_s


def test_a_collectives_latest_partner_continues_the_path() -> None:
    generator = np.random.default_rng(3)
    members = np.array([4, 1, 7, 2, 9])
    entered = generator.integers(0, 4, (5, 6)).astype(float)
    last_s, who = _last_of_others(entered, members)
    for me, k in np.ndindex(entered.shape):
        others = np.delete(entered[:, k], me)
        assert last_s[me, k] == others.max()
        at = int(np.flatnonzero(members == who[me, k])[0])
        assert at != me and entered[at, k] == others.max()
