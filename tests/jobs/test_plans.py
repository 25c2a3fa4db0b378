"""Every kind of plan through the command line: plan, run, compare, checkpoint and resume,
inference, verify.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.train.record_file import read
from tests.jobs.conftest import Run, summary

Make = Callable[..., Path]
NETWORK = "tests.jobs.networks:residual"
#: Strategy on 4 ranks and its options; a serial plan with the same micro-batches and fc_passes
#: trains alike.
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "pipeline": ("pipeline:2x2", {"microbatches": 2}),
    "df": ("df:2x2", {}),
    "channel": ("channel", {}),
    "sharded": ("data", {"synchronization": "sharded"}),
    "spatial": ("spatial", {}),
}


@pytest.fixture(scope="module")
def make(plan: Make) -> Make:
    """``make(name, **options)``: the file of one of `PLANS` in double precision; ``serial`` for one
    rank.
    """

    def made(name: str, **options: Any) -> Path:
        strategy, own = PLANS.get(name, ("data", {}))
        chosen = {"network": NETWORK, "batch": 16, "precision": "fp64"} | own | options
        return plan(1 if name == "serial" else 4, strategy, **chosen)

    return made


@pytest.mark.parametrize("name", list(PLANS))
def test_plans_train_and_are_compared(name: str, hpcpar: Run, make: Make, digits: Path,
                                      tmp_path: Path) -> None:
    words = ("--data", digits, "--steps", 4, "--rate", 0.02, "--json")
    record = tmp_path / "run.h5"
    ours = summary(hpcpar(4, "run", "--plan", make(name), *words, "--out", record))
    same = {"microbatches": 2} if name == "pipeline" else {}
    np.testing.assert_allclose(ours["losses"], serial_losses(hpcpar, make, same, words), rtol=1e-9)
    run = read(str(record))
    predicted = run.prediction["communication_bytes"]
    assert predicted == run.sent_bytes.sum(axis=1).max() and (predicted > 0) == (name != "serial")
    compared = json.loads(hpcpar(0, "compare", record, "--json").stdout)["runs"][0]
    assert compared["predicted_iteration_s"] > 0 and compared["measured_iteration_s"] > 0
    for part in ("a.conv1", "fc2"):
        times = compared["layers"][part]["compute"]
        assert times["measured_s"] > 0 and times["predicted_s"] > 0


_SERIAL: dict[int, list[float]] = {}


def serial_losses(hpcpar: Run, make: Make, options: dict[str, int],
                  words: tuple[Any, ...]) -> list[float]:
    """Losses of the same training on one rank."""
    key = options.get("microbatches", 1)
    if key not in _SERIAL:
        _SERIAL[key] = summary(hpcpar(1, "run", "--plan", make("serial", **options),
                                      *words))["losses"]
    return _SERIAL[key]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_checkpoint_resumes_under_another_plan(optimizer: str, hpcpar: Run, make: Make,
                                                 digits: Path, tmp_path: Path) -> None:
    """Weights, the optimizer's state and running statistics come from the file, and inference reads
    them under any plan.
    """
    words = ("--data", digits, "--rate", 0.004 if optimizer == "adam" else 0.02, "--json")
    save, again = tmp_path / "c.h5", tmp_path / "again.h5"
    first = hpcpar(4, "run", "--plan", make("sharded", optimizer=optimizer), "--steps", 12,
                   "--checkpoint", save, *words)
    assert len(summary(first)["losses"]) == 12
    rest = ("--steps", 15, "--resume", save)
    ours = summary(hpcpar(4, "run", "--plan", make("df", optimizer=optimizer), *rest, *words,
                          "--checkpoint", again))
    alone = summary(hpcpar(1, "run", "--plan", make("serial", optimizer=optimizer), *rest, *words,
                           "--checkpoint", tmp_path / "s.h5"))
    assert len(ours["losses"]) == 3
    np.testing.assert_allclose(ours["losses"], alone["losses"], rtol=1e-6)
    with h5py.File(again) as a, h5py.File(tmp_path / "s.h5") as b, h5py.File(save) as before:
        for name in ("running_mean", "running_variance"):
            np.testing.assert_allclose(a[f"params/b.bn1/{name}"], b[f"params/b.bn1/{name}"],
                                       rtol=1e-6)
            assert not np.array_equal(a[f"params/b.bn1/{name}"], before[f"params/b.bn1/{name}"])
    forward = ("--data", digits, "--forward-only", "--resume", again, "--json")
    seen = [summary(hpcpar(r, "run", "--plan", make(name, optimizer=optimizer), *forward))
            for r, name in ((4, "channel"), (1, "serial"))]
    assert (seen[0]["test_accuracy"]
            == pytest.approx(ours["test_accuracy"], abs=1e-9)
            == seen[1]["test_accuracy"])
    assert seen[0]["test_loss"] == pytest.approx(ours["test_loss"], rel=1e-9)


def test_a_checkpoint_of_another_optimizer_is_refused(hpcpar: Run, make: Make, digits: Path,
                                                      tmp_path: Path) -> None:
    save = tmp_path / "c.h5"
    done = hpcpar(1, "run", "--plan", make("serial"), "--data", digits, "--steps", 1,
                  "--checkpoint", save)
    assert done.returncode == 0, done.stderr
    done = hpcpar(1, "run", "--plan", make("serial", optimizer="adam"), "--data", digits, "--steps",
                  2, "--resume", save)
    assert done.returncode == 2 and "was trained with the optimizer momentum" in done.stderr


def test_several_passes_of_fully_connected_layers_train(hpcpar: Run, plan: Make, digits: Path,
                                                        tmp_path: Path) -> None:
    """One weird trick's variable batch trains, and is compared."""
    record = tmp_path / "run.h5"
    done = hpcpar(2, "run", "--plan", plan(2, "owt-c"), "--data", digits, "--epochs", 1, "--json",
                  "--out", record)
    assert summary(done)["test_accuracy"] > 0.8
    assert hpcpar(0, "compare", record).returncode == 0


def test_forward_only_runs_from_a_checkpoint(hpcpar: Run, make: Make, digits: Path,
                                             tmp_path: Path) -> None:
    """Inference in a pipeline, recorded and compared; what belongs to a training run is refused."""
    record = tmp_path / "run.h5"
    words = ("--plan", make("pipeline"), "--data", digits, "--forward-only")
    done = hpcpar(4, "run", *words, "--out", record, "--json")
    found = summary(done)
    assert (found["samples"] == 359
            and found["images_per_s"] > 0
            and found["predicted_pass_s"] > 0
            and "pass 23/23" in done.stderr)
    phases = json.loads(hpcpar(0, "compare", record, "--json").stdout)["runs"][0]["phases"]
    assert (phases["forward"]["compute"]["measured_s"] > 0
            and phases["backward"]["compute"]["measured_s"] == 0)
    refused = hpcpar(4, "run", *words, "--epochs", 2)
    assert refused.returncode == 2 and "--epochs has no effect with" in refused.stderr


def test_volumes_and_targets_train(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """CosmoFlow on small volumes, cut by depth: a test loss instead of an accuracy."""
    data, record = tmp_path / "cubes.h5", tmp_path / "run.h5"
    shown = ("--input", "2x16x16x16", "--targets", 3, "--samples", 12, "--test-samples", 5)
    assert hpcpar(0, "data", "synthetic", data, *shown).returncode == 0
    given = plan(4, "spatial", network="cosmoflow", input="2x16x16x16", classes=3, batch=4)
    done = hpcpar(4, "run", "--plan", given, "--data", data, "--epochs", 2, "--rate", 1e-4,
                  "--json", "--out", record)
    found = summary(done)
    assert found["test_accuracy"] is None and found["test_loss"] > 0 and "test loss" in done.stderr
    with h5py.File(record) as f:
        assert f["test_loss"].shape == (2,
                                        ) and np.isfinite(f["test_loss"]).all() and np.isnan(
            f["test_accuracy"]).all()


def test_resnet50_trains(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    """The real network in a pipeline with micro-batches."""
    data = tmp_path / "images.h5"
    shown = ("--input", "3x32x32", "--classes", 10, "--samples", 8)
    assert hpcpar(0, "data", "synthetic", data, *shown).returncode == 0
    given = plan(4, "pipeline:2x2", network="resnet50", input="3x32x32", classes=10, batch=4,
                 microbatches=2)
    found = summary(hpcpar(4, "run", "--plan", given, "--data", data, "--steps", 1, "--json"))
    assert np.isfinite(found["losses"]).all()
