"""Intervals from samples that are held out in turn: they cover what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.calibrate import held_out
from hpcpar.calibrate.samples import Samples
from hpcpar.cost.compute.step_time import plain_roofline_s
from hpcpar.cost.compute.work import Work
from hpcpar.machine import files

DEVICE = files.load("local").device


def work(items: int, kind: str = "relu") -> Work:
    return Work(kind, "forward", (items,), (items,), float(items), 8 * items, "", "float32")


@pytest.mark.parametrize("count", [7, 14, 70])
def test_nine_of_ten_further_samples_lie_inside(count: int) -> None:
    rng = np.random.default_rng(count)
    inside = []
    for _ in range(400):
        drift = np.exp(0.1 * rng.standard_normal(count + 1))
        visits = [Samples([work(10)], np.full((3, 1), speed)) for speed in drift]
        ratios = held_out.of_compute([visits[:-1]])
        assert ratios is not None
        predicted = float(np.mean(drift[:-1]))
        inside.append(ratios[0] <= drift[-1] / predicted <= ratios[1])
    assert 0.86 < np.mean(inside) < 0.94


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=20))
def test_an_interval_contains_one(ratios: list[float]) -> None:
    found = held_out.interval(ratios)
    assert found is not None
    low, high = found
    assert low <= 1 <= high and low * high == pytest.approx(1.0)
    wider = held_out.interval([r * r for r in ratios])
    assert wider is not None and wider[1] == pytest.approx(high**2)


def test_few_samples_give_no_interval() -> None:
    assert held_out.interval([1.0, 1.1]) is None
    assert held_out.of_compute([[Samples([work(1)], np.ones((5, 1)))]]) is None
    assert held_out.of_timers([[1.0]] * 9) is None
    alone = [work(10, kind) for kind in ("relu", "lrn", "tanh")]
    assert held_out.of_estimates(DEVICE, alone, {w.key: 1.0 for w in alone}) is None


def test_a_kind_that_follows_its_roofline_needs_no_measurements() -> None:
    works = [work(n) for n in (100, 1000, 10_000, 10**5)]
    exact = {w.key: 3 * float(plain_roofline_s(DEVICE, w)) for w in works}
    assert held_out.of_estimates(DEVICE, works, exact) == pytest.approx((1.0, 1.0))
    rough = {key: s * (1.2 if i % 2 else 0.8) for i, (key, s) in enumerate(exact.items())}
    found = held_out.of_estimates(DEVICE, works, rough)
    assert found is not None and found[1] > 1.2


def test_later_samples_are_predicted_by_earlier_ones() -> None:
    found = held_out.of_timers([[1.0, 1.0, 2.0, 2.0], [5.0, 5.0, 5.0], [3.0, 1.0, 3.0]])
    assert found is not None
    rms = math.sqrt((math.log(2.0) ** 2 + math.log(2 / 3) ** 2) / 3)
    assert math.log(found[1]) == pytest.approx(2.92 * rms, rel=0.07)
    steady = held_out.of_timers([[1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0]] * 5)
    assert steady == pytest.approx((1.0, 1.0)), "outliers do not move a run's median"
