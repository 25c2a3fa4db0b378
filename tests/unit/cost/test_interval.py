"""The interval of an iteration from its parts' intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import timed
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.trust import interval_s
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.report.tables import between

LOCAL = files.load("local")
SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)
PART = st.tuples(st.floats(0, 10), st.tuples(st.floats(0.1, 1), st.floats(1, 5)))


@given(st.lists(PART, max_size=6))
def test_the_interval_lies_between_the_widest_part_and_the_sum(
        parts: list[tuple[float, tuple[float, float]]]) -> None:
    total = sum(seconds for seconds, _ in parts)
    low, high = interval_s(total, parts)
    aboves = [seconds * (ratios[1] - 1) for seconds, ratios in parts]
    belows = [seconds * (1 - ratios[0]) for seconds, ratios in parts]
    assert max(aboves, default=0) - 1e-9 <= high - total <= sum(aboves) + 1e-9
    assert max(belows, default=0) - 1e-9 <= total - low <= sum(belows) + 1e-9


def predicted(machine: Machine, strategy: str = "filter") -> Prediction:
    plan = make_plan(SPEC, strategy, 2, 16, overlap="none", machine=LOCAL)
    return price(SPEC.build(), plan, machine)


def calibrated(**changed: object) -> Machine:
    """A machine that has measured the computing of ``filter``."""
    plan = make_plan(SPEC, "filter", 2, 16, overlap="none", machine=LOCAL)
    network = SPEC.build()
    works = WorkIndex(network, plan, schedule_for(network, plan)).works
    table = {key: float(timed(LOCAL, work)[0]) for key, work in works.items()}
    levels = tuple(replace(level, ratios=(0.5, 1.5)) for level in LOCAL.levels)
    made = replace(LOCAL, compute=table, levels=levels, compute_ratios=(0.9, 1.2),
                   estimate_ratios=(0.3, 3.0))
    return replace(made, **changed)


def test_an_iteration_deviates_as_its_computing_and_its_communication() -> None:
    p = predicted(calibrated())
    assert p.measured_compute == 1.0
    low, high = p.interval_s
    compute, waits = p.compute_s, p.exposed_communication_s
    assert p.iteration_s - low == pytest.approx(((0.1 * compute)**2 + (0.5 * waits)**2) ** 0.5)
    assert high - p.iteration_s == pytest.approx(((0.2 * compute)**2 + (0.5 * waits)**2) ** 0.5)
    assert p.to_json()["iteration_low_s"] == low and p.to_json()["iteration_high_s"] == high


def test_estimated_computing_widens_the_interval() -> None:
    surer, other = predicted(calibrated()), predicted(calibrated(), "spatial")
    assert other.measured_compute < 1
    assert other.interval_s[1] / other.iteration_s > surer.interval_s[1] / surer.iteration_s


@pytest.mark.parametrize(("changed", "part"), [
    ({"compute_ratios": None}, "computing"), ({"levels": LOCAL.levels}, "level 'shared memory'")])
def test_an_unmeasured_part_deviates_as_published_runs_do(changed: dict[str, object],
                                                          part: str) -> None:
    p, whole = predicted(calibrated(**changed)), predicted(calibrated())
    assert p.trust.source == f"calibrated, but not {part}" and not p.trust.calibrated
    assert whole.trust.words == "calibrated" and whole.trust.runs is None
    assert p.trust.ratios[1] > whole.trust.ratios[1]


@pytest.mark.parametrize("strategy", ["pipeline", "owt", "data"])
def test_every_strategy_has_an_interval(strategy: str) -> None:
    p = predicted(calibrated(), strategy)
    assert p.interval_s[0] < p.iteration_s < p.interval_s[1]


def test_machine_files_keep_ratios() -> None:
    machine = calibrated()
    assert files.from_dict(files.to_dict(machine)) == machine


def test_intervals_in_words() -> None:
    assert between(0.0225, (0.0219, 0.0234)) == "22.5 ms (21.9 to 23.4)"
    assert between(0.9, (0.8, 1.1)) == "900 ms (800 ms to 1.1 s)"
    assert between(200, (190, 230)) == "3 min 20 s (3 min 10 s to 3 min 50 s)"
    assert between(0.0225, None) == "22.5 ms"
