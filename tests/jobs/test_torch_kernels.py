"""``--kernels torch``: PyTorch's convolutions in whole jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.conftest import Run, summary

pytest.importorskip("torch", reason="PyTorch is not installed (extra 'oracle')")


@pytest.mark.parametrize("strategy", ["data", "spatial", "filter"])
def test_pytorchs_kernels_train_as_numpys_do(hpcpar: Run, plan: Callable[..., Path], digits: Path,
                                             strategy: str) -> None:
    """The same losses to rounding, in float64, and the schedule's messages."""
    path = plan(2, strategy, precision="fp64")
    losses = [summary(hpcpar(2, "run", "--plan", path, "--data", digits, "--steps", 6, "--kernels",
                             name, "--json"))["loss"] for name in ("numpy", "torch")]
    assert losses[1] == pytest.approx(losses[0], 1e-10)
    done = hpcpar(2, "verify", "--plan", path, "--kernels", "torch")
    assert done.returncode == 0, done.stderr


def test_a_calibration_with_pytorchs_kernels_plans_and_runs(hpcpar: Run, plan: Callable[..., Path],
                                                            digits: Path, tmp_path: Path) -> None:
    path, machine = plan(2, "data"), tmp_path / "m.toml"
    done = hpcpar(2, "calibrate", "--for", path, "--kernels", "torch", "-o", machine)
    assert done.returncode == 0, done.stderr
    assert 'convolutions = "PyTorch' in machine.read_text()
    planned = tmp_path / "p.json"
    done = hpcpar(0, "plan", "--network", "lenet5", "--input", "1x8x8", "--batch", 16, "--ranks", 2,
                  "--machine", machine, "--strategy", "data", "-o", planned)
    assert done.returncode == 0, done.stderr
    done = hpcpar(2, "run", "--plan", planned, "--data", digits, "--steps", 2)
    assert "measured with convolutions PyTorch" in done.stderr and "has NumPy" in done.stderr


def test_pytorchs_kernels_are_refused_on_gpus_in_one_line(hpcpar: Run, plan: Callable[..., Path],
                                                          digits: Path) -> None:
    done = hpcpar(1, "run", "--plan", plan(1, "data"), "--data", digits, "--device", "gpu",
                  "--kernels", "torch")
    assert done.returncode == 2 and "--kernels torch runs on CPUs" in done.stderr
    assert json.dumps(done.stderr).count("\\n") == 1
