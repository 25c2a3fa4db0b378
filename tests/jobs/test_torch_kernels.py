"""``--kernels auto`` and ``torch``: PyTorch's convolutions in whole jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcpar.calibrate import provenance
from hpcpar.kernels.conv_choice import RULE
from hpcpar.machine import files
from hpcpar.train import record_file
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


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_run_takes_the_calibrations_kernels(hpcpar: Run, plan: Callable[..., Path], digits: Path,
                                              tmp_path: Path, kernels: str) -> None:
    path, machine = plan(2, "data"), tmp_path / "m.toml"
    done = hpcpar(2, "calibrate", "--for", path, "--kernels", kernels, "-o", machine)
    assert done.returncode == 0, done.stderr
    calibrated = files.load(str(machine))
    assert calibrated.convolutions.keys() == RULE.keys()
    assert ("kernels" in calibrated.quality) == (kernels == "auto")
    planned = tmp_path / "p.json"
    done = hpcpar(0, "plan", "--network", "lenet5", "--input", "1x8x8", "--batch", 16, "--ranks", 2,
                  "--machine", machine, "--strategy", "data", "-o", planned)
    assert done.returncode == 0, done.stderr
    record = tmp_path / "r.h5"
    done = hpcpar(2, "run", "--plan", planned, "--data", digits, "--steps", 2, "--out", record)
    origin = provenance.origin(calibrated.quality, "the machine")
    assert origin is not None
    used = origin.versions["convolutions"]
    assert f"convolutions: {used}" in done.stderr and "measured with" not in done.stderr
    assert record_file.load(str(record))[0].versions["convolutions"] == used
    done = hpcpar(2, "run", "--plan", planned, "--data", digits, "--steps", 2, "--kernels", "numpy")
    assert "convolutions: NumPy" in done.stderr
    assert f"measured with convolutions {used}" in done.stderr or used == "NumPy"


def test_numpys_kernels_are_refused_on_gpus_in_one_line(hpcpar: Run, plan: Callable[..., Path],
                                                        digits: Path) -> None:
    done = hpcpar(1, "run", "--plan", plan(1, "data"), "--data", digits, "--device", "gpu",
                  "--kernels", "numpy")
    assert done.returncode == 2 and "--kernels numpy runs on CPUs" in done.stderr
    assert json.dumps(done.stderr).count("\\n") == 1
