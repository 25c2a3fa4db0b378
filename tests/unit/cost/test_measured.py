"""Times from a machine's table: looked up, between and beyond measured numbers of samples, and
rooflines scaled by what was measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.calibrate.samples import Samples
from hpcpar.calibrate.work_index import WorkIndex
from hpcpar.cost.compute.step_time import kinds, plain_roofline_s, roofline_s, timed
from hpcpar.cost.compute.work import Work
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.machine.measured import REACH, Measured, line_of
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.prediction.price import price

LOCAL = files.load("local")
KEY = "conv2d.forward x={0}x3x32x32 y={0}x8x32x32 k=3x3 s=1x1 d=1x1 g=1 float32"


def plan_of(strategy: str, batch: int, ranks: int = 2) -> Plan:
    spec = NetworkSpec("lenet5", (1, 28, 28), 10)
    return make_plan(spec, strategy, ranks, batch, machine=LOCAL)


def works(plan: Plan) -> dict[str, Work]:
    network = plan.network.build()
    return WorkIndex(network, plan, schedule_for(network, plan)).works


@pytest.mark.parametrize("strategy", ["data", "filter", "spatial", "channel"])
def test_keys_of_all_batches_lie_on_the_same_lines(strategy: str) -> None:
    """Keys of two batches differ in the number of samples only, in each of their works."""
    few, many = works(plan_of(strategy, 8)), works(plan_of(strategy, 24))
    assert len(few) == len(many)
    for a, b in zip(few, many, strict=True):
        (line, n), (other, m) = line_of(a), line_of(b)
        assert line == other
        assert m == (n if ".update " in a else 3 * n) > 0


BATCHES = st.sets(st.integers(1, 512), min_size=2, max_size=5)


@given(constant=st.floats(0.0, 1e-3), slope=st.floats(1e-6, 1e-2), batches=BATCHES,
       n=st.integers(1, 2048))
def test_linear_times_are_predicted_exactly_for_every_batch(constant: float, slope: float,
                                                            batches: set[int], n: int) -> None:
    table = Measured({KEY.format(b): constant + slope * b for b in batches}, 0.0)
    found = table.time(KEY.format(n))
    assert found is not None and found.seconds == pytest.approx(constant + slope * n)
    assert found.reached == (min(batches) / REACH <= n <= max(batches) * REACH)


def test_a_vector_times_a_matrix_does_not_predict_matrix_products() -> None:
    """A fully connected layer of one sample lies on no line with others, unless nothing else is
    known.
    """
    key = "linear.forward x={0}x4096 y={0}x4096 float32"
    table = Measured({key.format(n): seconds for n, seconds in ((1, 1.0), (4, 12.0), (8, 20.0))},
                     0.0)
    assert [table.time(key.format(n)) for n in (1, 2, 6)] == [(1.0, True), (8.0, True),
                                                              (16.0, True)]
    alone = Measured({key.format(1): 1.0}, 0.0).time(key.format(2))
    assert alone == (2.0, True)
    conv = Measured({KEY.format(n): seconds for n, seconds in ((1, 1.0), (4, 12.0), (8, 20.0))},
                    0.0).time(KEY.format(2))
    assert conv is not None and conv.seconds == pytest.approx(1.0 + 11.0 / 3)


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1.0), min_size=1, max_size=4),
       st.integers(1, 300))
def test_noise_gives_no_negative_times_and_more_samples_never_cost_less(
        points: dict[int, float], n: int) -> None:
    table = Measured({KEY.format(b): s for b, s in points.items()}, 1e-6)
    found, following = table.time(KEY.format(n)), table.time(KEY.format(n + 1))
    assert found is not None and following is not None and found.seconds > 0
    if n >= max(points) or n < min(points):
        assert following.seconds >= found.seconds * (1 - 1e-12)
    assert table.time(KEY.format(n).replace("k=3x3", "k=5x5")) is None


def test_one_measured_batch_scales_in_proportion() -> None:
    table = Measured({KEY.format(8): 9e-3}, 1e-3)
    assert table.time(KEY.format(16)) == (pytest.approx(17e-3), True)
    assert table.time(KEY.format(2)) == (pytest.approx(3e-3), False)


def test_between_two_measured_batches_a_plan_is_priced_by_their_lines() -> None:
    """All of its computing is known, and an interior takes its part."""
    def times(batch: int) -> dict[str, float]:
        every = works(plan_of("spatial", batch)).items()
        return {key: 1e-4 if work.kind == "update" else 1e-4 + 1e-3 * work.y[0]
                for key, work in every}

    plan = plan_of("spatial", 16)
    network = plan.network.build()
    machine, exact = replace(LOCAL, compute=times(8) | times(32)), replace(LOCAL, compute=times(16))
    found = price(network, plan, machine)
    assert found.measured_compute == 1.0
    assert found.iteration_s == pytest.approx(price(network, plan, exact).iteration_s)
    for key, work in works(plan).items():
        seconds, known = timed(machine, replace(work, fraction=0.25))
        assert known and seconds == pytest.approx(times(16)[key] / 4)


def test_unmeasured_work_scales_by_its_kind() -> None:
    known, other = works(plan_of("data", 16)), works(plan_of("filter", 16))
    table = {key: 3.0 * float(plain_roofline_s(LOCAL.device, work)) for key, work in known.items()}
    machine = replace(LOCAL, compute=table, kinds=kinds(LOCAL.device, known.values(), table))
    assert machine.kinds and list(machine.kinds.values()) == pytest.approx(
        [3.0] * len(machine.kinds))
    new = [work for work in other.values() if machine.measured.time(work.key) is None
           and work.bytes]
    assert new
    for work in new:
        assert timed(machine, work) == (pytest.approx(3.0 * float(roofline_s(LOCAL, work))),
                                        np.False_)


def test_files_keep_kinds(tmp_path: Path) -> None:
    machine = replace(LOCAL, kinds={"conv2d.forward float32": 2.5})
    files.save(machine, str(tmp_path / "m.toml"))
    assert files.load(str(tmp_path / "m.toml")) == machine


def test_undisturbed_iterations_count() -> None:
    """Iterations without interruptions count; where all are interrupted, their mean counts."""
    rows = list(works(plan_of("data", 16)).values())[:2]
    rare = np.full((12, 2), 1.0)
    rare[[3, 8], [0, 1]] = 50.0
    assert list(Samples(rows, rare).table().values()) == [1.0, 1.0]
    always = np.array([[3.0, 1.0], [1.0, 3.0]] * 6)
    assert list(Samples(rows, always).table().values()) == [2.0, 2.0]
