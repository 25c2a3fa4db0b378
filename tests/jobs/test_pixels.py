"""Losses over pixels, and signals, by whole jobs: data, plan, run, verify."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.jobs.conftest import Run, summary

Make = Callable[..., Path]


@pytest.mark.parametrize(("name", "shape", "options", "ranks", "strategy"), [
    ("cells", "1x17x16", ("--pixels",), 4, "spatial"),
    ("cells", "1x17x16", ("--pixels",), 3, "filter"),
    ("waves", "2x61", (), 3, "spatial"),
])
def test_several_ranks_learn_as_one_does(name: str, shape: str, options: tuple[str, ...],
                                         ranks: int, strategy: str, hpcpar: Run, plan: Make,
                                         tmp_path: Path) -> None:
    """Also in an incomplete last batch of the held-out part."""
    data, network = tmp_path / "data.h5", f"tests.jobs.networks:{name}"
    made = hpcpar(1, "data", "synthetic", data, "--input", shape, "--classes", 3, *options,
                  "--samples", 48, "--test-samples", 10)
    assert made.returncode == 0, made.stderr
    words = ("--data", data, "--epochs", 8, "--rate", 0.05, "--seed", 1, "--json")
    one, several = (
        summary(hpcpar(count, "run", "--plan", plan(count, how, network=network, dtype="float64",
                                                    batch=8), *words))
        for count, how in ((1, "data"), (ranks, strategy)))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)
    assert several["losses"][-1] < 0.9 * several["losses"][0]
    assert several["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=1e-12)
    assert several["test_accuracy"] > 0.45


def test_ranks_without_a_part_of_a_signal(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """A signal cut into more parts than it has columns trains as on one rank."""
    data, network = tmp_path / "data.h5", "tests.jobs.networks:short_waves"
    made = hpcpar(1, "data", "synthetic", data, "--input", "2x5", "--classes", 3, "--samples", 16,
                  "--test-samples", 6)
    assert made.returncode == 0, made.stderr
    one, several = (
        summary(hpcpar(count, "run", "--data", data, "--steps", 2, "--json", "--plan",
                       plan(count, how, network=network, dtype="float64", batch=8)))
        for count, how in ((1, "data"), (4, "spatial")))
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-9)


def test_a_loss_over_pixels_is_verified(hpcpar: Run, plan: Make) -> None:
    path = plan(3, "spatial", network="tests.jobs.networks:cells", batch=8)
    done = hpcpar(3, "verify", "--plan", path, "--steps", 2)
    assert done.returncode == 0, done.stderr
