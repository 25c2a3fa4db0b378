"""How many ranks to ask for: the choice on hand-made numbers, and where those numbers come from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hpcpar.cost.ratios import Ratio
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.builtin.small import lenet5
from hpcpar.plan.plan import NetworkSpec
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.scaling import Scale, best_ranks, nodes, scaling
from hpcpar.search.task import PlanningTask

LOCAL = files.load("local")
FITS, TOO_LARGE = 1, LOCAL.device.memory_bytes + 1


def task(ranks: int, batch: int, machine: Machine = LOCAL) -> PlanningTask:
    return PlanningTask(lenet5((1, 28, 28), 10), NetworkSpec("lenet5", (1, 28, 28), 10), ranks,
                        batch, machine, "lazy", 60_000, {})


def scale(ranks: int, run_s: float, efficiency: float, node_hours: float,
          held: int = FITS) -> Scale:
    candidate = Candidate(task(ranks, 64), "data", run_s / 1000, held, ranks)
    # instead of the exact memory, where the bound is large
    candidate.__dict__["fits"] = held == FITS
    of_one = Ratio(efficiency, efficiency / 2, efficiency * 2)
    return Scale(candidate, ranks, 64, of_one, run_s, node_hours)


#: Time falls, efficiency falls and cost grows with ranks; 32 ranks are slower than 16; one rank
#: does not fit.
SCALES = [scale(1, 1000, 1.0, 1.0, TOO_LARGE), scale(2, 520, 0.96, 1.04), scale(4, 280, 0.89, 1.12),
          scale(8, 160, 0.78, 1.28), scale(16, 110, 0.57, 1.76), scale(32, 120, 0.26, 3.84)]


@pytest.mark.parametrize(
    ("condition", "ranks"),
    [({}, 16), ({"efficiency": 0.0}, 16), ({"efficiency": 0.57}, 16), ({"efficiency": 0.58}, 8),
     ({"efficiency": 0.9}, 2), ({"efficiency": 0.97}, None), ({"deadline_s": 1e9}, 2),
     ({"deadline_s": 520}, 2), ({"deadline_s": 519}, 4), ({"deadline_s": 120}, 16),
     ({"deadline_s": 109}, None), ({"node_hours": 10}, 16), ({"node_hours": 1.5}, 8),
     ({"node_hours": 1.04}, 2), ({"node_hours": 1.0}, None),
     ({"efficiency": 0.8, "deadline_s": 300}, 4), ({"efficiency": 0.8, "deadline_s": 200}, None),
     ({"node_hours": 2.0, "deadline_s": 200}, 16), ({"node_hours": 1.3, "deadline_s": 200}, 8),
     ({"efficiency": 0.5, "node_hours": 1.2}, 4),
     ({"efficiency": 0.9, "node_hours": 2.0, "deadline_s": 600}, 2)],
)
def test_the_choice_meets_deadline_or_budget(condition: dict[str, float],
                                             ranks: int | None) -> None:
    for scales in (SCALES, SCALES[::-1]):
        found = best_ranks(scales, **condition)
        assert (found.ranks if found else None) == ranks


def test_the_fastest_of_equal_costs_meets_the_deadline() -> None:
    found = best_ranks([scale(2, 500, 1.0, 1.0), scale(4, 250, 1.0, 1.0)], deadline_s=600)
    assert found is not None and found.ranks == 4


def test_there_is_no_choice_if_nothing_fits() -> None:
    assert best_ranks([]) is None and best_ranks(SCALES[:1]) is None


def test_efficiency_time_and_node_hours() -> None:
    """Strong and weak scaling by hand: 4 ranks per node, 0.01 s per sample on one rank."""
    cases = ((1, 64, 0.64), (6, 64, 0.16), (8, 512, 0.8))
    machine = files.load("p100x4x4")
    made = [Candidate(task(ranks, batch, machine), "data", seconds, FITS, ranks)
            for ranks, batch, seconds in cases]
    serial = Candidate(task(1, 64, machine), "data", 0.64, FITS, 1)
    one, strong, weak = scaling(made, 6400, 2.0, serial)
    assert (one.efficiency, one.run_s) == (pytest.approx(1.0), pytest.approx(2 * 100 * 0.64))
    assert one.node_hours == pytest.approx(one.run_s / 3600)
    assert strong.efficiency == pytest.approx(0.64 / (6 * 0.16)) and strong.run_s == pytest.approx(
        2 * 100 * 0.16
    )
    assert strong.node_hours == pytest.approx(2 * strong.run_s / 3600)  # 6 ranks take two nodes
    assert weak.efficiency == pytest.approx(512 * 0.01 / (8 * 0.8)) and weak.run_s == pytest.approx(
        2 * 12.5 * 0.8
    )
    assert weak.to_json() == {"ranks": 8, "strategy": "data", "batch": 512, "iteration_s": 0.8,
                              "fits": True, **weak.of_one.to_json("efficiency"),
                              "run_s": weak.run_s, "node_hours": weak.node_hours}


def test_a_single_rank_is_fully_efficient() -> None:
    wanted = task(1, 32)
    alone = auto.price_strategy(wanted, "data")
    (found,) = scaling([alone], 32, 1.0, alone)
    assert found.efficiency == pytest.approx(1.0) and found.run_s == pytest.approx(
        alone.iteration_s)
    assert math.isclose(found.node_hours, found.run_s / 3600)


def test_ranks_of_a_node() -> None:
    assert {files.load(name).ranks_of_node for name in ("abci-v100", "p100x4x4")} == {4}
    assert files.load("cori-knl").ranks_of_node == 1
    node = replace(LOCAL.levels[0], name="node", ranks=0)
    for machine in (LOCAL, replace(LOCAL, levels=(node,)), files.load("k20x8")):
        assert machine.ranks_of_node == 0 and nodes(machine, 8) == 1
    assert nodes(files.load("abci-v100"), 6) == 2
