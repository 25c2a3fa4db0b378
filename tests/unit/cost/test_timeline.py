"""The timeline: computing, and communication beside it on every level of the machine."""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from hpcpar.cost.step_prices import StepPrice
from hpcpar.cost.timeline.timeline import Timeline, timeline
from hpcpar.machine import files
from hpcpar.plan.config import Config
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.price import price as simulated
from hpcpar.schedule.steps import NOTHING, Comm, Compute, Op, Phase, Role, Step, TensorRef
from tests.unit.closed import price

MACHINE = files.load("local")


def plain_sum(seconds: Iterable[float]) -> float:
    """One addition after the other: from Python 3.12 on the builtin compensates rounding."""
    return functools.reduce(operator.add, seconds)


class Timed(NamedTuple):
    """A step and its price."""

    step: Step
    price: StepPrice

    @property
    def seconds(self) -> float:
        return float(self.price.seconds)


def compute(seconds: float) -> Timed:
    return Timed(Compute(Phase.FORWARD, "layer", Op.FORWARD, 1, None), StepPrice(seconds))


def comm(seconds: float, needed_by: int, level: int = 0) -> Timed:
    layout = Layout(Config(), ())
    step = Comm(Phase.FORWARD, "layer", TensorRef("layer", Role.INPUT), NOTHING, layout, layout, 4,
                needed_by=needed_by)
    return Timed(step, StepPrice(seconds, level=level))


def laid_out(timed: Sequence[Timed], hidden: float = 1.0, levels: int = 1,
             rate: float = 1.0) -> Timeline[Any]:
    return timeline([t.step for t in timed], [t.price for t in timed], hidden, levels, rate)


def test_communication_hides_behind_computing() -> None:
    line = laid_out([compute(1.0), comm(2.0, 3), compute(5.0), compute(1.0)])
    assert line.total_s == 7.0 and sum(line.waits_s) == 0.0
    assert (line.spans[1].start_s, line.spans[1].end_s) == (1.0, 3.0)


def test_the_rest_of_a_message_is_exposed() -> None:
    line = laid_out([compute(1.0), comm(6.0, 3), compute(5.0), compute(1.0)])
    assert line.total_s == 8.0 and sum(line.waits_s) == 1.0 and line.waits_s == (0.0, 1.0, 0.0, 0.0)


def test_a_level_does_one_thing_at_a_time() -> None:
    line = laid_out([comm(2.0, 4), comm(2.0, 4), compute(1.0), comm(2.0, 4)])
    assert [s.start_s for s in line.spans] == [0.0, 2.0, 0.0, 4.0]
    assert line.total_s == 6.0 and sum(line.waits_s) == 5.0


def test_links_are_free_before_the_latency_has_passed() -> None:
    """The last byte leaves them a latency before it arrives."""
    first, second = comm(3.0, 2), comm(3.0, 2)
    first = first._replace(price=first.price._replace(latency_s=1.0))
    line = laid_out([first, second])
    assert [(s.start_s, s.end_s) for s in line.spans] == [(0.0, 3.0), (2.0, 5.0)]


def test_levels_work_side_by_side() -> None:
    """Messages on a node's links do not wait for messages on the rack's links, only for those on
    the same links.
    """
    line = laid_out([comm(2.0, 4, 0), comm(3.0, 4, 1), compute(1.0), comm(2.0, 4, 0)], levels=2)
    assert [s.start_s for s in line.spans] == [0.0, 0.0, 0.0, 2.0]
    assert line.total_s == 4.0 and sum(line.waits_s) == 3.0


def test_a_communication_waits_for_what_it_needs() -> None:
    """A gradient's sum behind the movement that it waits for holds up the program, as in the
    executor.
    """
    line = laid_out([comm(3.0, 2), compute(1.0), comm(1.0, 4), compute(1.0)])
    assert line.spans[2].start_s == 3.0 and line.spans[3].start_s == 3.0
    assert line.total_s == 4.0


def random_steps(seed: int, count: int = 200, blocking: bool = False) -> list[Timed]:
    rng = random.Random(seed)
    out = []
    for i in range(count):
        seconds = rng.random()
        until = i + 1 if blocking else rng.randint(i + 1, min(count, i + 12))
        out.append(compute(seconds) if rng.random() < 0.5
                   else comm(seconds, until, rng.randint(0, 2)))
    return out


def test_blocking_is_the_plain_sum_exactly() -> None:
    steps = random_steps(1, blocking=True)
    assert laid_out(steps, levels=3).total_s == plain_sum(s.seconds for s in steps)


@pytest.mark.parametrize(("hidden", "rate"), [(1.0, 1.0), (0.3, 1.0), (0.7, 0.4)])
def test_a_familys_timeline_equals_its_cases(hidden: float, rate: float) -> None:
    """Cases side by side, some without some of the steps, are laid out as each alone."""
    cases = [random_steps(seed, 60) for seed in range(5)]
    rng = random.Random(9)
    shape = cases[0]
    seconds = [[case[i].seconds * (rng.random() < 0.8) for case in cases] for i in range(60)]
    levels = [[int(case[i].price.level) for case in cases] for i in range(60)]
    items = [Timed(s.step, StepPrice(np.array(t), level=np.array(v)))
             for s, t, v in zip(shape, seconds, levels, strict=True)]
    together = laid_out(items, hidden, 3, rate)

    def alone(j: int) -> Timeline[float]:
        return laid_out([Timed(s.step, StepPrice(t[j], level=v[j]))
                         for s, t, v in zip(shape, seconds, levels, strict=True)], hidden, 3, rate)

    for j in range(5):
        line = alone(j)
        assert together.total_s[j] == line.total_s and sum(together.waits_s)[j] == sum(line.waits_s)
        assert [float(np.broadcast_to(w, 5)[j])
                for w in together.waits_s] == [float(w) for w in line.waits_s]


@pytest.mark.parametrize("strategy", ["data", "grid:2x3", "grid-fc:3x2", "domain:6x1", "owt",
                                      "filter", "spatial"])
def test_overlap_of_priced_plans(strategy: str) -> None:
    spec = NetworkSpec("alexnet", (3, 67, 67), 100)
    network = spec.build()
    total = {}
    for overlap in ("none", "gradient", "full"):
        plan = make_plan(spec, strategy, 6, 24, overlap=overlap, machine=MACHINE)
        p = price(network, plan, MACHINE)
        total[overlap] = p
        assert p.iteration_s == pytest.approx(p.compute_s + p.exposed_communication_s, rel=1e-12)
        assert p.iteration_s >= max(p.compute_s,
                                    0) and p.exposed_communication_s <= p.communication_s * (
                                        1 + 1e-12)
    none = total["none"]
    assert none.iteration_s == plain_sum(s.seconds for s in none.steps)
    assert total["gradient"].iteration_s <= none.iteration_s
    # computing an interior and a boundary apart costs two launches instead of one
    launches = 5 * MACHINE.device.launch_s
    assert total["full"].iteration_s <= total["gradient"].iteration_s + launches


def test_messages_that_the_program_drives_are_not_hidden() -> None:
    steps = [compute(1.0), comm(2.0, 3), compute(5.0), compute(1.0)]
    half = laid_out(steps, hidden=0.5)
    assert (half.total_s, sum(half.waits_s)) == (8.0, 1.0)
    assert laid_out(steps, hidden=0.0).total_s == plain_sum(s.seconds for s in steps)


def test_two_stages_drive_half_of_their_message_each() -> None:
    """Computing can hide 3 of 4 s: the sender drives the first half second, from 1 to 1.5, and the
    receiver the last.
    """
    sent, received = comm(4.0, 3), compute(2.0)
    sent = sent._replace(step=replace(sent.step, receivers=(1,)))
    received = received._replace(step=replace(received.step, stage=1))
    line = laid_out([compute(1.0), sent, compute(1.0), received], hidden=0.75)
    assert [stage.exposed_s for stage in line.stages] == [{1: 0.5}, {1: 3.5}]
    assert (line.total_s, line.stages[1].bubble_s) == (7.0, 1.5)


def test_communication_progresses_slowly_beside_computing() -> None:
    """At half the rate, 5 s of computing hide 2.5 s of 6; the rest takes its full time."""
    steps = [compute(1.0), comm(6.0, 3), compute(5.0), compute(1.0)]
    line = laid_out(steps, rate=0.5)
    assert (line.total_s, sum(line.waits_s)) == (10.5, 3.5)
    assert (line.spans[1].start_s, line.spans[1].end_s) == (1.0, 9.5)
    # a short one ends while the program computes, and one behind it begins then
    steps = [compute(1.0), comm(1.0, 4), comm(0.5, 4), compute(5.0), compute(1.0)]
    line = laid_out(steps, rate=0.5)
    assert line.total_s == 7.0 and sum(line.waits_s) == 0.0
    assert [(s.start_s, s.end_s) for s in line.spans[1:3]] == [(1.0, 3.0), (3.0, 4.0)]
    # what the program drives itself goes on at the full rate
    line = laid_out([comm(2.0, 2), compute(4.0)], hidden=0.5, rate=0.5)
    assert (line.total_s, sum(line.waits_s), line.spans[0].end_s) == (5.0, 1.0, 3.0)


def test_a_rate_of_one_changes_nothing_and_a_lower_one_never_helps() -> None:
    for seed in range(20):
        steps = random_steps(seed, 50)
        totals = [float(laid_out(steps, hidden, 3, rate).total_s) for hidden in (1.0, 0.6)
                  for rate in (1.0, 1 - 1e-12, 0.5, 0.1)]
        for full, nearly, half, tenth in (totals[:4], totals[4:]):
            assert nearly == pytest.approx(full) and full <= half * (
                1 + 1e-12) and half <= tenth * (1 + 1e-12)


def test_the_program_is_never_busy_twice() -> None:
    """Computing and waiting make up the iteration, and no wait is longer than its communication."""
    for seed in range(20):
        steps = random_steps(seed, 50)
        line = laid_out(steps, levels=3)
        busy = sum(s.seconds for s in steps if isinstance(s.step, Compute))
        assert line.total_s == pytest.approx(busy + sum(line.waits_s), rel=1e-12)
        assert line.total_s <= plain_sum(s.seconds for s in steps) * (1 + 1e-12)
        for step, span in zip(steps, line.spans, strict=True):
            assert span.end_s - span.start_s == pytest.approx(step.seconds)
            assert span.end_s <= line.total_s * (1 + 1e-12)


def submitted(times_s: Sequence[float], submit_s: float) -> Timeline[Any]:
    """The timeline of compute steps that a host submits."""
    steps = [compute(seconds) for seconds in times_s]
    return timeline([t.step for t in steps], [t.price for t in steps], submit_s=submit_s)


def test_a_host_that_runs_ahead_costs_its_first_step_only() -> None:
    assert submitted([5.0, 5.0, 5.0], 1.0).total_s == 16.0


def test_short_steps_take_as_long_as_their_host_needs_to_submit_them() -> None:
    line = submitted([0.1] * 10, 1.0)
    assert line.total_s == pytest.approx(10.1)
    assert line.stages[0].bubble_s == pytest.approx(9.1)


def test_a_long_step_lets_the_host_get_ahead_for_later_short_ones() -> None:
    """The larger of two sums, not the sum of the larger ones."""
    assert submitted([4.0, 0.5, 0.5, 0.5], 1.0).total_s == pytest.approx(6.5)


def test_a_predicted_iteration_is_the_larger_of_host_and_device() -> None:
    machine = files.load("p100x4x4")
    spec = NetworkSpec("lenet5", (1, 8, 8), 10)
    network, plan = spec.build(), make_plan(spec, "data", 4, 64)
    device = simulated(network, plan, machine)
    slow = simulated(network, plan, replace(machine, device=replace(machine.device, submit_s=1.0)))
    assert slow.iteration_s >= len(slow.steps) > device.iteration_s
    parts_s = slow.compute_s + slow.exposed_communication_s + slow.bubble_s
    assert parts_s == pytest.approx(slow.iteration_s)
    assert slow.compute_s == pytest.approx(device.compute_s)
