"""Start times of steps that a rank keeps: all of a short run, runs of neighboring iterations of a
long one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hpcpar.comm.clock_sync import common
from hpcpar.runtime import reservoir
from hpcpar.runtime.program import StepTimes
from hpcpar.runtime.reservoir import GROUP, Reservoir
from hpcpar.runtime.stamps import Stamps


class Alone:
    """A world of one."""

    rank, size = 0, 1


class Program:
    """Three steps; of the last nothing is done here."""

    def __init__(self, at: float) -> None:
        self.at = at

    def times(self) -> StepTimes:
        return StepTimes(
            np.array([1e-3, 2e-3, 0.0]), np.array([self.at + 1e-3, self.at + 2e-3, np.nan]),
            np.array([np.nan, self.at + 4e-3, np.nan]), np.array([np.nan, 1e-3, np.nan]))


def stamped(iterations: int, steps: int = 3) -> Stamps:
    world: Any = Alone()
    out = Stamps(world, steps)
    for i in range(iterations):
        out.add(i, Program(100.0 + i).times, 100.0 + i)
    return out


def test_a_short_run_keeps_all_stamps() -> None:
    out = stamped(50)
    assert out.kept.numbers == list(range(50))
    numbers, got = out.arrays()
    assert numbers == out.kept.numbers
    assert got["begin_s"].tolist() == [100.0 + i for i in range(50)]
    np.testing.assert_allclose(got["seconds"], [[1e-3, 2e-3, 0.0]] * 50, rtol=1e-4)
    np.testing.assert_allclose(got["start_s"], [[1e-3, 2e-3, np.nan]] * 50, rtol=1e-4)
    np.testing.assert_allclose(got["end_s"], [[np.nan, 4e-3, np.nan]] * 50, rtol=1e-4)
    assert {a.dtype for name, a in got.items() if name != "begin_s"} == {np.dtype(np.float32)}
    clock = out.clocks()
    assert clock is not None and clock.shape == (1, 2, 3)
    assert clock[0, 0, 0] < clock[0, 1, 0] and (clock[:, :, 1:] == 0).all()


def test_arrays_are_empty_before_the_first_iteration() -> None:
    assert {name: a.shape for name, a in stamped(0).arrays()[1].items()} == {
        "begin_s": (0,), "seconds": (0, 3), "start_s": (0, 3), "end_s": (0, 3), "wait_s": (0, 3)}


@pytest.mark.parametrize("iterations", [41, 100, 1000, 4567])
def test_a_long_run_keeps_a_bounded_number_of_stamps(iterations: int) -> None:
    """However long the run, at most the given number, spread over all of it, in groups of
    neighbors; a larger reservoir has everything that a smaller one has.
    """
    most = max(reservoir.MIN_ITERATIONS, 40)
    kept = stamped(iterations, reservoir.KEPT_TIMES // most).kept
    larger: Reservoir[int] = Reservoir(100)
    for i in range(iterations):
        larger.add(i, -i)
    assert most // 2 - GROUP <= len(kept.numbers) <= most and len(larger.numbers) <= 100
    assert kept.numbers[0] == 0 and kept.numbers[-1] > 0.8 * iterations - GROUP * 4
    assert [begin_s for begin_s, _ in kept.values] == [100.0 + n for n in kept.numbers]
    groups = np.split(kept.numbers, np.flatnonzero(np.diff(kept.numbers) > 1) + 1)
    assert all(len(g) % GROUP == 0 for g in groups[:-1])
    gaps = {int(b[0] - a[0]) for a, b in pairwise(groups)}
    assert len(gaps) <= 1
    assert set(kept.numbers) <= set(larger.numbers)
    assert larger.values == [-n for n in larger.numbers]


def test_meanwhile_a_record_has_fewer_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most a given number, in groups of neighbors; the stamps themselves stay."""
    monkeypatch.setattr("hpcpar.runtime.stamps.KEPT_TIMES_MEANWHILE", 3 * 40)
    out = stamped(100)
    numbers, got = out.arrays(whole=False)
    assert numbers == [n for n in range(100) if n // GROUP % 4 == 0]
    assert got["begin_s"].tolist() == [100.0 + n for n in numbers]
    assert got["seconds"].shape == (len(numbers), 3)
    assert out.arrays()[0] == [*range(100)]


def test_drifting_clocks_are_aligned() -> None:
    """Readings at the beginning and the end fix what lies between them."""
    true = np.linspace(10.0, 110.0, 11)
    offsets, drifts = np.array([0.0, -7.0, 1e6]), np.array([0.0, 3e-5, -2e-4])
    ahead = offsets[:, None] + drifts[:, None] * true
    readings = np.stack([true + ahead, ahead, np.zeros_like(ahead)], axis=2)[:, [0, -1]]
    np.testing.assert_allclose(common(true + ahead, readings), np.tile(true, (3, 1)), atol=1e-8)
    deep = np.broadcast_to((true + ahead)[:, :, None], (3, 11, 4))
    np.testing.assert_allclose(common(deep, readings),
                               np.broadcast_to(true[None, :, None], (3, 11, 4)), atol=1e-8)
    still = np.repeat(readings[:, :1], 2, axis=1)  # two readings at the same time
    np.testing.assert_allclose(common(true[:1] + ahead[:, :1], still), np.full((3, 1), 10.0),
                               atol=1e-8)
