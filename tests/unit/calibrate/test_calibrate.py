"""From samples to figures: fits, intervals, outliers, links that are shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcpar.calibrate import alpha_beta_fit as fit
from hpcpar.calibrate import timer as timers
from hpcpar.calibrate.calibrate import cores_per_unit
from hpcpar.calibrate.samples import of_all_ranks
from hpcpar.calibrate.timer import Timer, bootstrap, long_enough, outliers
from hpcpar.kernels.numpy_backend import NumpyBackend
from hpcpar.machine.model import NodeCores

SIZES = (64, 512, 4096, 32 * 1024, 256 * 1024, 1024 * 1024)
ALPHA_S, BETA_S, SMALL_S = 2e-5, 1e-9, 8e-6


def messages() -> np.ndarray:
    """Seconds as the model says; 4096 bytes take the long ones' latency and the short ones' alike,
    so the middle of both.
    """
    return np.array([(SMALL_S if n < 4096 else ALPHA_S) + BETA_S * n for n in SIZES])


@pytest.mark.parametrize(("least_s", "size"), [(1.0, 8), (8.0, 8), (9.0, 16), (100.0, 32)])
def test_sizes_double_until_they_take_long_enough(least_s: float, size: int) -> None:
    made = list[int]()

    def make(n: int) -> Any:
        made.append(n)
        return SimpleNamespace(once_s=float(n))

    found, timer = long_enough((8, 32), least_s, make)
    assert found == timer.once_s == made[-1] == size


def test_the_fit_recovers_latency_and_bandwidth() -> None:
    alpha, beta, small = fit.hockney(SIZES, messages())
    assert alpha == pytest.approx(ALPHA_S) and beta == pytest.approx(
        BETA_S) and small == pytest.approx(SMALL_S)
    assert fit.residual(SIZES[3:], messages()[3:],
                        (alpha, beta, small)) == pytest.approx(0, abs=1e-9)
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
def test_shared_links_are_found(inside: int, alone: float, together: float, found: float) -> None:
    assert fit.links(inside, alone, together) == found


class Alone:
    """A world of one rank."""

    def barrier(self) -> None:
        pass

    def max(self, value: float) -> float:
        return value


def test_gauge_repeats_short_actions() -> None:
    calls: list[int] = []
    world: Any = Alone()
    timer = Timer(world, NumpyBackend(), lambda: calls.append(1))
    assert len(calls) == 2 and timer.seconds == timer.once_s
    timer.take()
    assert len(calls) > 50 and len(timer.samples) == 1 and timer.seconds == timer.samples[0]


def test_setup_before_an_action_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], []
    monkeypatch.setattr(timers.time, "perf_counter", lambda: now[0])
    backend = NumpyBackend()
    monkeypatch.setattr(backend, "mark", lambda: now[0])

    def takes(what: str, seconds: float) -> None:
        done.append(what)
        now[0] += seconds

    world: Any = Alone()
    timer = Timer(world, backend, lambda: takes("message", 1e-5),
                  lambda: takes("computing", 1e-3))
    done.clear()
    timer.take()
    assert timer.seconds == pytest.approx(1e-5) and timer.sample_s == pytest.approx(0.02, rel=0.1)
    assert done == ["computing",
                    "message"] * (len(done) // 2) and len(done) // 2 == round(
                        timer.sample_s / 1.01e-3)


def test_a_sample_lasts_for_the_requested_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], [0]
    monkeypatch.setattr(timers.time, "perf_counter", lambda: now[0])
    backend = NumpyBackend()
    monkeypatch.setattr(backend, "mark", lambda: now[0])

    def acts() -> None:
        now[0] += 1e-5
        done[0] += 1

    world: Any = Alone()
    timer = Timer(world, backend, acts, sample_s=0.05)
    done[0] = 0
    timer.take()
    assert done[0] == pytest.approx(5000,
                                    abs=1) and timer.seconds == pytest.approx(
        1e-5) and timer.sample_s == pytest.approx(0.05)


def test_the_slowest_rank_counts_or_the_mean_of_ranks_that_share_cores() -> None:
    """[ranks, iterations, works]; the second work is on the last two ranks only."""
    each = np.array([[[1.0, 0.0]] * 2, [[2.0, 4.0]] * 2, [[6.0, 8.0]] * 2])
    np.testing.assert_array_equal(of_all_ranks(each, shared=False), [[6.0, 8.0]] * 2)
    np.testing.assert_array_equal(of_all_ranks(each, shared=True), [[3.0, 6.0]] * 2)


@pytest.mark.parametrize(("node", "local", "size", "cores"), [
    ((4, 16), 4, 4, 16), ((4, 2), 4, 4, 2),  # a single node
    ((4, 16), 4, 8, 16),  # nodes of four ranks
    ((4, 2), 1, 4, 2), ((4, 2), 2, 4, 1),  # containers of one machine
    ((1, 16), 1, 4, 0),  # nodes of a rank each
    ((0, 0), 4, 4, 0),  # GPUs
])
def test_a_unit_has_the_cores_of_its_ranks(node: tuple[int, int], local: int, size: int,
                                           cores: int) -> None:
    assert cores_per_unit(NodeCores(*node), local, size) == cores
