"""Search, measure what leads, search again: with a measurer that knows the truth."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from hpcpar.calibrate.for_auto import (
    Contender,
    Contest,
    calibrate_for_auto,
    most_informative,
    seconds_of_work,
)
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import kinds, plain_roofline_s
from hpcpar.cost.compute.work import Work
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.search.auto import best
from hpcpar.search.candidates import Candidate
from tests.unit.closed import price

MACHINE = files.load("local")
SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)
NETWORK = SPEC.build()
Truth = Callable[[Work], float]


def search(machine: Machine, ranks: int = 4, layers: bool = False) -> list[Candidate]:
    return best(NETWORK, SPEC, ranks, 16, machine, layers=layers)


def works(plan: Plan) -> dict[str, Work]:
    return WorkIndex(NETWORK, plan, schedule_for(NETWORK, plan)).works


class FirstRank:
    """A world of one rank."""

    def first(self, action: Callable[[], Any]) -> Any:
        return action()


class KnownTimes:
    """A measurer that returns given times; measuring a plan takes a second."""

    def __init__(self, truth: Truth) -> None:
        self.world: Any = FirstRank()
        self.truth, self.elapsed_s = truth, 0.0
        self.works: dict[str, Work] = {}
        self.plans: list[Plan] = []

    def visits(self, plans: Sequence[Plan], links: bool = True) -> Iterator[int]:
        assert links == (not plans)
        for number, plan in enumerate(plans):
            self.plans.append(plan)
            self.works |= works(plan)
            self.elapsed_s += 1.0
            yield number

    def expected_s(self, plan: Plan, machine: Machine) -> float:
        return 1.0

    def machine(self) -> Machine:
        table = {key: self.truth(work) for key, work in self.works.items()}
        return replace(MACHINE, compute=table,
                       kinds=kinds(MACHINE.device, self.works.values(), table))


def as_calibration(measurer: KnownTimes) -> Any:
    """The measured times, in place of a `hpcpar.calibrate.calibrate.Calibration`."""
    return measurer


def about(seed: int, spread: float) -> Truth:
    """Times that are up to `spread` above a roofline, by the kind of work and by its shapes."""
    def truth(work: Work) -> float:
        parts = (zlib.crc32(f"{seed} {text}".encode()) / 2**32 for text in (work.sort, work.key))
        of_kind, of_shape = parts
        return float(plain_roofline_s(MACHINE.device, work)) * (1 + 2 * of_kind) * (
            1 + spread * of_shape)

    return truth


def all_measured(truth: Truth) -> KnownTimes:
    """Every plan's work."""
    everything = KnownTimes(truth)
    for c in search(MACHINE):
        everything.works |= works(c.plan)
    return everything


@pytest.mark.parametrize("seed", range(4))
def test_fewer_measurements_give_the_choice_of_the_whole_space(seed: int) -> None:
    truth = about(seed, 0.2)
    measurer, everything = KnownTimes(truth), all_measured(truth)
    machine, choice = calibrate_for_auto(as_calibration(measurer), search, math.inf)
    known = search(everything.machine())[0]
    assert choice.stands and choice.strategy == known.strategy
    plan, whole = known.plan, everything.machine()
    assert price(NETWORK, plan, machine).iteration_s == pytest.approx(
        price(NETWORK, plan, whole).iteration_s)  # the largest parts are measured
    # the exact price has smaller parts too, which are estimated from what else is measured
    assert choice.iteration_s == pytest.approx(known.iteration_s, rel=1e-3)
    assert search(machine)[0].strategy == choice.strategy
    assert choice.measured == len(set(machine.compute)) <= choice.shapes
    assert len(machine.compute) < len(everything.works)
    assert machine.quality["search"] == asdict(choice)
    assert files.from_dict(files.to_dict(machine)) == machine


def test_every_step_of_a_layer_wise_choice_is_measured() -> None:
    measurer = KnownTimes(about(0, 0.5))
    machine, choice = calibrate_for_auto(
        as_calibration(measurer), lambda m: search(m, ranks=2, layers=True), math.inf)
    assert choice.stands and choice.searches > 1
    assert search(machine, ranks=2, layers=True)[0].measured == 1.0


def test_a_plan_that_measures_slower_than_estimated_is_dropped() -> None:
    first = search(MACHINE)[0]
    slow = set(works(first.plan)) - set(works(search(MACHINE)[1].plan))

    def truth(work: Work) -> float:
        return float(plain_roofline_s(MACHINE.device, work)) * (50 if work.key in slow else 1)

    measurer = KnownTimes(truth)
    _, choice = calibrate_for_auto(as_calibration(measurer), search, math.inf)
    assert slow <= set(measurer.works) and choice.strategy != first.strategy and choice.stands


@pytest.mark.parametrize("budget_s", [0.0, 1.5])
def test_the_time_budget_is_kept(budget_s: float) -> None:
    measurer = KnownTimes(about(1, 0.5))
    machine, choice = calibrate_for_auto(as_calibration(measurer), search, budget_s)
    assert len(measurer.plans) == int(budget_s) and not choice.stands
    assert choice.measured == len(machine.compute) == len(measurer.works) < choice.shapes
    if budget_s:
        (contender, *_) = [c for c in Contest(search).contenders(MACHINE)
                           if c.candidate.plan == measurer.plans[0]]
        assert contender.estimated_s.keys() == measurer.works.keys()


def test_overlong_measuring_ends_after_a_round() -> None:
    class Slow(KnownTimes):
        rounds = 0

        def visits(self, plans: Sequence[Plan], links: bool = True) -> Iterator[int]:
            for _ in range(7 * bool(plans)):
                self.rounds += 1
                yield from super().visits(plans, links)
                self.elapsed_s += 10.0

    measurer = Slow(about(1, 0.5))
    _, choice = calibrate_for_auto(as_calibration(measurer), search, 12.0)
    assert measurer.rounds == 2 and choice.measured > 0, "the first round ends at 10 s, or 14"


def test_shapes_that_many_contenders_share_come_first() -> None:
    a, b = search(MACHINE)[:2]
    own = Contender(a, {"a": 0.2 * a.iteration_s})
    shared = Contender(b, {"b": 0.15 * b.iteration_s})
    assert most_informative([own, shared]) is own
    third = Contender(search(MACHINE)[2], {"b": 0.15 * search(MACHINE)[2].iteration_s})
    assert most_informative([own, shared, third]) is not own


def test_seconds_of_work_equal_the_prediction() -> None:
    for c in search(MACHINE)[:3]:
        assert sum(seconds_of_work(c).values()) == pytest.approx(float(c.costs.compute_s))
