"""Real images trained by whole jobs: accuracy, equal loss curves, checkpoints across plans."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.jobs.conftest import Run, clean_environment, summary
from tests.limits import LIMIT_S, wait_until

Make = Callable[..., Path]
#: Every kind of strategy on 4 ranks.
STRATEGIES = ["data", "filter", "spatial", "owt", "grid:2x2", "grid-fc:2x2", "domain:2x2",
              "domain:4x1", "ds:2x2", "df:2x2"]
#: A job that waits for ever after its 150th step, in its second epoch.
WAITS = """
import itertools, signal, sys
import hpcpar.runtime.executor as executor
from hpcpar.cli.main import main
honest, steps = executor.Executor.begin, itertools.count()
def iterate(self, *args):
    while next(steps) >= 150:
        signal.pause()
    return honest(self, *args)
executor.Executor.begin = iterate
sys.exit(main(sys.argv[1:]))
"""
TRAINING = ("--epochs", 12, "--rate", 0.015, "--decay", 0.01, "--schedule", "owt", "--seed", 5)


@pytest.fixture(scope="module")
def serial(hpcpar: Run, plan: Make, digits: Path) -> dict[str, Any]:
    """The same training on one rank."""
    return summary(hpcpar(1, "run", "--plan", plan(1, "data"), "--data", digits, *TRAINING,
                          "--json"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_digits_reach_97_percent(strategy: str, hpcpar: Run, plan: Make, digits: Path,
                                 serial: dict[str, Any]) -> None:
    done = summary(hpcpar(4, "run", "--plan", plan(4, strategy), "--data", digits, *TRAINING,
                          "--json"))
    assert done["test_accuracy"] >= 0.97
    # float32 sums differ in their order, and training amplifies that; the first epoch is close, the
    # rest stays near
    ours, alone = np.array(done["losses"]), np.array(serial["losses"])
    np.testing.assert_allclose(ours[:40], alone[:40], rtol=1e-3, atol=1e-4)
    assert abs(ours[-89:].mean() - alone[-89:].mean()) < 0.02


def test_loss_curve_equals_one_rank_in_float64(hpcpar: Run, plan: Make, digits: Path) -> None:
    words = ("--data", digits, "--steps", 50, "--rate", 0.04, "--json")
    alone = summary(hpcpar(1, "run", "--plan", plan(1, "data", precision="fp64"), *words))["losses"]
    for ranks, strategy in ((3, "spatial"), (4, "grid:2x2"), (6, "domain:3x2")):
        ours = summary(hpcpar(ranks, "run", "--plan", plan(ranks, strategy, precision="fp64"),
                              *words))["losses"]
        np.testing.assert_allclose(ours, alone, rtol=1e-9)


def test_checkpoint_resumes_under_another_plan(hpcpar: Run, plan: Make, digits: Path,
                                               tmp_path: Path) -> None:
    words = ("--data", digits, "--rate", 0.04, "--seed", 3, "--json")
    whole = summary(hpcpar(2, "run", "--plan", plan(2, "filter", precision="fp64"), "--epochs", 3,
                           *words))["losses"]
    save = tmp_path / "c.h5"
    first = hpcpar(2, "run", "--plan", plan(2, "filter", precision="fp64"), "--epochs", 3,
                   "--checkpoint", save, *words)
    assert summary(first)["losses"] == whole
    with h5py.File(save) as f:
        assert f["params/conv2/weight"].shape == (16, 6, 5, 5)
        assert f["state"].attrs["step"] == len(whole)
        weights = f["params/fc1/weight"][...]
    longer = ("--epochs", 4, "--resume", save)
    a = summary(hpcpar(2, "run", "--plan", plan(2, "filter", precision="fp64"), *longer,
                       *words))["losses"]
    b = summary(hpcpar(3, "run", "--plan", plan(3, "spatial", precision="fp64"), *longer,
                       *words))["losses"]
    assert len(a) == len(whole) // 3
    np.testing.assert_allclose(b, a, rtol=1e-9)
    assert np.isfinite(weights).all()


def test_killed_training_continues_the_curve(mpiexec: str, hpcpar: Run, plan: Make, digits: Path,
                                             tmp_path: Path) -> None:
    """A training run that is killed goes on from its checkpoint, under another plan on more ranks,
    as if nothing had happened.
    """
    save = tmp_path / "c.h5"
    words = ("--data", digits, "--rate", 0.04, "--epochs", 8, "--schedule", "owt", "--json")
    whole = summary(hpcpar(2, "run", "--plan", plan(2, "data", precision="fp64"), *words))["losses"]
    arguments = ["run", "--plan", plan(2, "data", precision="fp64"), *words, "--checkpoint", save]
    command = [mpiexec, "-n", "2", sys.executable, "-c", WAITS, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=clean_environment()) as job:
        wait_until(save.exists, job)
        job.kill()
    kept = shutil.copy(save, tmp_path / "kept.h5")  # ranks may outlive their launcher for a moment
    with h5py.File(kept) as f:
        done = int(f["state"].attrs["step"])
    assert 0 < done < len(whole)
    rest = summary(hpcpar(4, "run", "--plan", plan(4, "domain:2x2", precision="fp64"), "--resume",
                          kept, *words))["losses"]
    np.testing.assert_allclose(rest, whole[done:], rtol=1e-9)


@pytest.mark.parametrize(("network", "shape"), [("lenet5", "1x28x28"), ("resnet50", "3x32x32")])
def test_the_defaults_train(network: str, shape: str, hpcpar: Run, tmp_path: Path) -> None:
    """Above 60% of held-out images in three epochs, without an option."""
    data, made = tmp_path / "data.h5", tmp_path / "plan.json"
    assert not hpcpar(0, "data", "synthetic", data, "--input", shape, "--classes", 10, "--samples",
                      512, "--test-samples", 128).returncode
    assert not hpcpar(0, "plan", "--network", network, "--input", shape, "--classes", 10,
                      "--ranks", 2, "--batch", 16, "-o", made).returncode
    done = summary(hpcpar(2, "run", "--plan", made, "--data", data, "--epochs", 3, "--json",
                          timeout=LIMIT_S))
    assert done["test_accuracy"] > 0.6


def test_a_loss_that_is_not_finite_names_a_layer(hpcpar: Run, plan: Make, digits: Path) -> None:
    """In one line: NumPy does not warn of it before."""
    done = hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--steps", 9, "--rate",
                  1e9, "--warmup", 0)
    assert done.returncode == 1 and "Warning" not in done.stderr
    assert "the loss is nan at step" in done.stderr and "output of layer '" in done.stderr
