"""The two-stream timeline."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterable

import pytest

from hpcpar.cost.price import price
from hpcpar.cost.timeline import timeline
from hpcpar.machine import files
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Axis, Layout
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.schedule.steps import Comm, Compute, Kind, Op, Phase, Step

LAYOUT = Layout(Config(), (Axis("c", 1, 1),))
MACHINE = files.load("local")


def plain_sum(seconds: Iterable[float]) -> float:
    """One addition after the other: from Python 3.12 on the builtin compensates rounding."""
    return functools.reduce(operator.add, seconds)


def compute(i: int) -> Step:
    return Compute(i, Phase.FORWARD, f"l{i}", Op.FORWARD)


def comm(i: int, needed_by: int) -> Step:
    return Comm(i, Phase.GRADIENT, f"l{i}", "t", Kind.ALLREDUCE, LAYOUT, LAYOUT, True, None, "ring", 1, 4, needed_by)


def test_communication_hides_behind_computing() -> None:
    line = timeline([compute(0), comm(1, 3), compute(2), compute(3)], [1.0, 2.0, 5.0, 1.0])
    assert line.total_s == 7.0 and line.exposed_s == 0.0
    assert (line.spans[1].start_s, line.spans[1].end_s) == (1.0, 3.0)


def test_what_is_not_hidden_is_exposed() -> None:
    line = timeline([compute(0), comm(1, 3), compute(2), compute(3)], [1.0, 6.0, 5.0, 1.0])
    assert line.total_s == 8.0 and line.exposed_s == 1.0 and line.waits_s == (0.0, 1.0, 0.0, 0.0)


def test_the_network_does_one_thing_at_a_time() -> None:
    line = timeline([comm(0, 4), comm(1, 4), compute(2), comm(3, 4)], [2.0, 2.0, 1.0, 2.0])
    assert [s.start_s for s in line.spans] == [0.0, 2.0, 0.0, 4.0]
    assert line.total_s == 6.0 and line.exposed_s == 5.0


def test_a_communication_waits_for_what_it_needs() -> None:
    """A gradient's sum behind the movement that it waits for holds up the program, as in the executor."""
    line = timeline([comm(0, 2), compute(1), comm(2, 4), compute(3)], [3.0, 1.0, 1.0, 1.0])
    assert line.spans[2].start_s == 3.0 and line.spans[3].start_s == 3.0
    assert line.total_s == 4.0


def test_blocking_is_the_plain_sum_exactly() -> None:
    rng = random.Random(1)
    steps, seconds = [], []
    for i in range(200):
        steps.append(compute(i) if rng.random() < 0.5 else comm(i, i + 1))
        seconds.append(rng.random())
    line = timeline(steps, seconds)
    assert line.total_s == plain_sum(seconds)


@pytest.mark.parametrize("strategy", ["data", "grid:2x3", "grid-fc:3x2", "domain:6x1", "owt", "filter", "spatial"])
def test_overlap_of_priced_plans(strategy: str) -> None:
    spec = NetworkSpec("alexnet", (3, 67, 67), 100)
    network = spec.build()
    total = {}
    for overlap in ("none", "gradient", "full"):
        plan = make_plan(spec, strategy, 6, 24, overlap=overlap, machine=files.to_dict(MACHINE))
        p = price(network, plan, MACHINE)
        total[overlap] = p
        assert p.iteration_s == pytest.approx(p.compute_s + p.exposed_communication_s, rel=1e-12)
        assert p.iteration_s >= max(p.compute_s, 0) and p.exposed_communication_s <= p.communication_s * (1 + 1e-12)
    none = total["none"]
    assert none.iteration_s == plain_sum(s.seconds for s in none.steps)
    assert total["gradient"].iteration_s <= none.iteration_s
    # computing an interior and a boundary apart costs two launches instead of one
    launches = 5 * MACHINE.device.launch_s
    assert total["full"].iteration_s <= total["gradient"].iteration_s + launches


def test_what_the_program_drives_itself_is_not_hidden() -> None:
    steps, seconds = [compute(0), comm(1, 3), compute(2), compute(3)], [1.0, 2.0, 5.0, 1.0]
    half = timeline(steps, seconds, hidden=0.5)
    assert (half.total_s, half.exposed_s) == (8.0, 1.0)
    assert timeline(steps, seconds, hidden=0.0).total_s == plain_sum(seconds)
