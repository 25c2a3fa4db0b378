"""What becomes of samples: fits, intervals, outliers, links that are shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcpar.calibrate import alpha_beta_fit as fit
from hpcpar.calibrate import compute_probe as probe
from hpcpar.calibrate import timer as gauges
from hpcpar.calibrate.lateness import PRODUCTS, RELAY_PRODUCTS, Lateness
from hpcpar.calibrate.timer import Gauge, bootstrap, outliers

SIZES = (64, 512, 4096, 32 * 1024, 256 * 1024, 1024 * 1024)
ALPHA_S, BETA_S, SMALL_S = 2e-5, 1e-9, 8e-6


def messages() -> np.ndarray:
    """Seconds as the model says; 4096 bytes take the long ones' latency and the short ones' alike,
    so the middle of both.
    """
    return np.array([(SMALL_S if n < 4096 else ALPHA_S) + BETA_S * n for n in SIZES])


def test_fit_finds_what_made_the_times() -> None:
    alpha, beta, small = fit.hockney(SIZES, messages())
    assert alpha == pytest.approx(ALPHA_S) and beta == pytest.approx(
        BETA_S) and small == pytest.approx(SMALL_S)
    assert fit.residual(SIZES[3:], messages()[3:], (alpha, beta, small)) == pytest.approx(0, abs=1e-9)
    assert fit.residual(SIZES, 2 * messages(), (alpha, beta, small)) > 0.4


def test_interval_holds_the_truth_and_shrinks_with_the_noise() -> None:
    rng = np.random.default_rng(0)

    def interval(noise: float) -> np.ndarray:
        rounds = messages() * (1 + noise * rng.random((9, len(SIZES))) - noise / 2)
        return bootstrap(rounds, lambda t: fit.hockney(SIZES, t))

    wide, narrow = interval(0.2), interval(0.02)
    assert wide[0, 1] <= BETA_S <= wide[1, 1]
    assert np.all(narrow[1] - narrow[0] < wide[1] - wide[0])


def test_outliers_are_far_above_the_others() -> None:
    assert outliers([1.0, 1.01, 0.99, 1.02, 5.0, 1.0]) == 1
    assert outliers([1.0, 1.3, 0.7, 1.2, 0.9]) == 0
    assert outliers([1.0, 1.0, 1.0, 1.2]) == 0, "however alike the others"
    assert outliers([]) == 0


@pytest.mark.parametrize(("inside", "alone", "together", "found"), [
    (1, 1.0, 9.0, 0.0), (4, 1.0, 1.1, 0.0), (4, 1.0, 4.0, 1.0), (4, 1.0, 2.0, 2.0),
])
def test_links_that_are_shared(inside: int, alone: float, together: float, found: float) -> None:
    assert fit.links(inside, alone, together) == found


class Alone:
    """A world of one rank."""

    def barrier(self) -> None:
        pass

    def most(self, value: float) -> float:
        return value


def test_gauge_repeats_short_actions() -> None:
    calls: list[int] = []
    world: Any = Alone()
    gauge = Gauge(world, lambda: calls.append(1))
    assert len(calls) == 2 and gauge.seconds == gauge.once_s
    gauge.take()
    assert len(calls) > 50 and len(gauge.samples) == 1 and gauge.seconds == gauge.samples[0]


def test_what_is_done_before_an_action_is_outside_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], []
    monkeypatch.setattr(gauges.time, "perf_counter", lambda: now[0])

    def takes(what: str, seconds: float) -> None:
        done.append(what)
        now[0] += seconds

    world: Any = Alone()
    gauge = Gauge(world, lambda: takes("message", 1e-5), lambda: takes("computing", 1e-3))
    done.clear()
    gauge.take()
    assert gauge.seconds == pytest.approx(1e-5) and gauge.sample_s == pytest.approx(0.02, rel=0.1)
    assert done == ["computing", "message"] * (len(done) // 2) and len(done) // 2 == round(gauge.sample_s / 1.01e-3)


def test_a_sample_lasts_as_long_as_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], [0]
    monkeypatch.setattr(gauges.time, "perf_counter", lambda: now[0])

    def acts() -> None:
        now[0] += 1e-5
        done[0] += 1

    world: Any = Alone()
    gauge = Gauge(world, acts, lasts_s=0.05)
    done[0] = 0
    gauge.take()
    assert done[0] == pytest.approx(5000,
                                    abs=1) and gauge.seconds == pytest.approx(
        1e-5) and gauge.sample_s == pytest.approx(0.05)


class Crowd(Alone):
    """One of two ranks of a core, with clocks that show what is done: computing takes two turns,
    and a message waits up to a limit.
    """

    size, kernel = 2, "here"
    product_s, message_s, most_s = 2e-5, 1e-5, 1e-3

    def __init__(self) -> None:
        self.now = self.computed = self.used = 0.0
        self.world = self.communicator = self.comm = self

    def allgather(self, mine: Any) -> Any:
        """Of both, on one core."""
        return [(mine[0], frozenset({0})) if isinstance(mine, tuple) else mine] * 2

    def barrier(self) -> None:
        self.computed = 0.0

    def zeros(self, shape: tuple[int, ...], _: str) -> Any:
        return np.zeros(shape[0])

    def unpack(self, *_: Any) -> None:
        pass

    def gemm(self, *_: Any) -> None:
        self.now += 2 * self.product_s
        self.used += self.product_s
        self.computed += 2 * self.product_s

    def action(self, kind: Any, algorithm: str, config: Any, axis: str, n_bytes: int) -> Any:
        """A message; in a long one half of the lateness is hidden."""
        def act() -> None:
            self.now += self.message_s + self.late_s(self.computed) * (0.5 if n_bytes > 2 * 2048 else 1.0)
            self.computed = 0.0

        return act

    def relay(self, n_bytes: int) -> Any:
        def first() -> None:
            self.now += self.message_s
            self.computed = 0.0

        def then() -> None:
            self.now += self.message_s + 2 * self.late_s(self.computed)
            self.computed = 0.0

        return first, then

    def late_s(self, computed_s: float) -> float:
        return min(self.most_s, computed_s / 2)


def test_lateness_is_what_both_in_turns_take_longer_than_each_alone(
    monkeypatch: pytest.MonkeyPatch) -> None:
    job: Any = Crowd()
    monkeypatch.setattr(gauges.time, "perf_counter", lambda: job.now)
    monkeypatch.setattr(gauges.time, "process_time", lambda: job.used)
    lateness = Lateness(job, job)
    assert lateness.late == lateness.relay == ()
    for gauge in lateness.gauges:
        assert gauge.sample_s >= 0.045
        gauge.take()
    computed_s = 2 * np.array(PRODUCTS) * job.product_s
    np.testing.assert_allclose(lateness.late, [(s, job.late_s(s)) for s in computed_s], rtol=1e-6)
    # there and back: each way half of the computing, one message, and half of what the two need
    # beyond that
    computed_s = 2 * np.array(RELAY_PRODUCTS) * job.product_s
    np.testing.assert_allclose(lateness.relay,
                               [(s / 2, job.message_s + job.late_s(s)) for s in computed_s],
                               rtol=1e-6)


class Pair(Alone):
    """Two ranks with a core each: this one, and another that took what is told."""

    size, kernel, rank = 2, "here", 0

    def __init__(self, other: NDArray[np.float64]) -> None:
        self.comm, self.other = self, other

    def allgather(self, mine: Any) -> list[Any]:
        if isinstance(mine, tuple):
            return [("here", frozenset({core})) for core in (0, 1)]
        return [mine, self.other if mine.dtype == float else (self.other > 0).any(axis=0)]


def test_the_core_that_takes_longest_counts_but_not_the_one_that_happens_to() -> None:
    rng = np.random.default_rng(0)
    mine, other = rng.lognormal(0.0, 0.3, (2, 12, 400))
    mine[:, :100] *= 2  # of these steps one core has twice as much
    pair: Any = Pair(other)
    found = np.median(probe._slowest_core(pair, mine, 2.0), axis=0)
    assert found.shape == (400,)
    assert np.mean(found[:100]) == pytest.approx(np.mean(np.median(mine[:, :100], axis=0)),
                                                 rel=1e-3)
    # of the others both as much: no more than either of them, where the larger of the two medians
    # would be a twentieth more
    assert np.mean(found[100:]) == pytest.approx(np.mean(np.median(mine[:, 100:], axis=0)),
                                                 rel=0.03)
    assert np.mean(np.maximum(np.median(mine, axis=0),
                              np.median(other, axis=0))[100:]) > 1.04 * np.mean(found[100:])
    single: Any = Pair(other[:1])
    np.testing.assert_array_equal(probe._slowest_core(single, mine[:1], 2.0),
                                  np.maximum(mine, other)[:1])
