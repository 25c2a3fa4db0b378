"""On a GPU the host reads each result one iteration late. Records, checkpoints and errors are the
same as on the CPU; the GPU is the fake one of `tests/pretended`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests import cuda_cpu
from tests.jobs.conftest import ROOT, Run, clean_environment, summary

pytestmark = pytest.mark.skipif(bool(cuda_cpu.missing()), reason=cuda_cpu.missing())
GPU: dict[str, str] = {"PYTHONPATH": f"{ROOT / 'tests' / 'pretended'}:"
                                     f"{clean_environment()['PYTHONPATH']}"}
WAY = ("--transport", "nccl", "--graphs", "off")
Both = Callable[..., "list[subprocess.CompletedProcess[str]]"]


@pytest.fixture
def both(hpcpar: Run) -> Both:
    """``both(ranks, *words)``: the same run on CPUs, and on GPUs with NCCL, step by step. In the
    words, {} is the device.
    """

    def run(ranks: int, *words: Any) -> list[subprocess.CompletedProcess[str]]:
        return [hpcpar(ranks, "run", *(str(word).replace("{}", device) for word in words),
                       "--device", device, *more, **env)
                for device, more, env in (("cpu", (), {}), ("gpu", WAY, GPU))]

    return run


@pytest.mark.parametrize("ranks", [1, 2])
def test_records_and_checkpoints_are_the_same(ranks: int, both: Both, plan: Any, digits: Path,
                                              tmp_path: Path) -> None:
    """Over the ends of epochs, with their evaluation, and checkpoints in between."""
    cpu, gpu = map(summary, both(
        ranks, "--plan", plan(ranks, "data", precision="fp64", batch=128), "--data", digits,
        "--epochs", 2, "--json", "--checkpoint", tmp_path / "{}.h5", "--checkpoint-every",
        "5steps", "--keep", 9, "--out", tmp_path / "{}-run.h5"))
    np.testing.assert_allclose(gpu["losses"], cpu["losses"], rtol=1e-9)
    with h5py.File(tmp_path / "cpu-run.h5") as a, h5py.File(tmp_path / "gpu-run.h5") as b:
        assert set(a) == set(b)
        for name in ("iterations_done", "kept", "epochs_done", "messages", "sent_bytes"):
            assert (a[name][...] == b[name][...]).all(), name
        for name in ("loss", "test_accuracy", "test_loss"):
            np.testing.assert_allclose(b[name][...], a[name][...], rtol=1e-9)
        for name in ("seconds", "start_s", "end_s", "wait_s"):
            assert (np.isnan(a[name][...]) == np.isnan(b[name][...])).all(), name
        assert (b["iteration_s"][...] > 0).all() and np.nanmin(b["start_s"][...]) >= 0
        # steps end within their iteration
        within = b["iteration_s"][...][:, b["kept"][...], None]
        assert (np.nan_to_num(b["end_s"][...]) <= within + 1e-3).all()
    saved = sorted(path.name for path in tmp_path.glob("cpu*.h5") if "run" not in path.name)
    assert len(saved) > 2
    for name in saved:
        with h5py.File(tmp_path / name) as a, h5py.File(
                tmp_path / name.replace("cpu", "gpu")) as b:
            assert a["state"].attrs["step"] == b["state"].attrs["step"]
            np.testing.assert_allclose(b["params/fc1/weight"][...], a["params/fc1/weight"][...],
                                       rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_is_not_finite_names_its_iteration(ranks: int, both: Both, plan: Any,
                                                       digits: Path) -> None:
    """The layer, too, although the next iteration has overwritten its output."""
    cpu, gpu = both(ranks, "--plan", plan(ranks, "data", precision="fp64"), "--data", digits,
                    "--steps", 9, "--rate", 1e9, "--warmup", 0)
    assert cpu.returncode == gpu.returncode == 1
    said = [next(line for line in done.stderr.splitlines() if "the loss is" in line)
            for done in (cpu, gpu)]
    assert said[0] == said[1] and "at step 1:" not in said[0]


@pytest.mark.parametrize(("ranks", "transport"), [(1, "staged"), (2, "nccl"), (2, "staged")])
def test_graphs_change_no_bit(ranks: int, transport: str, hpcpar: Run, plan: Any, digits: Path,
                              tmp_path: Path) -> None:
    """Over ends of epochs with smaller batches, evaluations, checkpoints and a resumed run."""
    chosen = plan(ranks, "data", precision="fp32", batch=128, optimizer="adam")
    for graphs in ("auto", "off"):
        at = tmp_path / f"{graphs}.h5"
        words = ("run", "--plan", chosen, "--data", digits, "--device", "gpu", "--transport",
                 transport, "--graphs", graphs, "--checkpoint", at, "--out",
                 tmp_path / f"{graphs}-run.h5")
        summary(hpcpar(ranks, *words, "--steps", 28, "--json", **GPU))
        summary(hpcpar(ranks, *words, "--steps", 54, "--resume", at, "--json", **GPU))
    with h5py.File(tmp_path / "auto-run.h5") as a, h5py.File(tmp_path / "off-run.h5") as b:
        for name in ("loss", "messages", "sent_bytes", "test_loss"):
            np.testing.assert_array_equal(a[name][...], b[name][...])
        assert len(a["kept"]) < len(b["kept"])
    with h5py.File(tmp_path / "auto.h5") as a, h5py.File(tmp_path / "off.h5") as b:
        for tensor in ("params/fc1/weight", "optimizer/fc1/weight_second"):
            np.testing.assert_array_equal(a[tensor][...], b[tensor][...])
