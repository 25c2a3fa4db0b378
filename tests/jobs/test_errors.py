"""User errors: one clear line, once, exit status 2 (or 1 for a run that failed), and
nobody hangs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcpar.network.builtin import network
from hpcpar.network.network_file import save
from tests.jobs.conftest import Run, clean_environment
from tests.limits import LIMIT_S

Make = Callable[..., Path]


def said(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """The job ended with `status` and one line of ours that holds all `words`."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("hpcpar: ")]
    assert done.returncode == status, done.stderr
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


def test_a_plan_for_another_number_of_ranks_is_refused(hpcpar: Run, plan: Make,
                                                       digits: Path) -> None:
    said(hpcpar(3, "run", "--plan", plan(2, "data"), "--data", digits), 2, "plan is for 2 ranks",
         "has 3", "mpiexec -n 2")


def test_truncated_data_are_refused(hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.h5"
    cut.write_bytes(digits.read_bytes()[: digits.stat().st_size // 2])
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", cut), 2, "cut.h5", "hpcpar data")


def test_missing_data_are_refused(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", tmp_path / "none.h5"), 2, "none.h5")


def test_images_of_the_wrong_shape_are_refused(hpcpar: Run, plan: Make, digits: Path) -> None:
    done = hpcpar(2, "run", "--plan", plan(2, "data", input="1x12x12"), "--data", digits)
    said(done, 2, "1x8x8", "1x12x12")


def test_nan_loss_names_step_and_layer(hpcpar: Run, plan: Make, tmp_path: Path) -> None:
    path = tmp_path / "nan.h5"
    images = np.random.default_rng(0).standard_normal((64, 1, 8, 8)).astype(np.float32)
    images[:] = np.nan
    with h5py.File(path, "w") as f:
        f["images"], f["labels"] = images, np.arange(64) % 10
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", path), 1, "step 0", "layer 'input'")


def test_diverging_training_stops(hpcpar: Run, plan: Make, digits: Path) -> None:
    done = hpcpar(2, "run", "--plan", plan(2, "filter"), "--data", digits, "--rate", 1e6,
                  "--epochs", 2)
    said(done, 1, "loss is", "at step", "layer '", "--rate")


@pytest.mark.parametrize("command", ["run", "verify"])
def test_weights_that_the_source_trains_differently_are_refused(
        command: str, hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    net = network("lenet5", (1, 8, 8))
    file = tmp_path / "net.json"
    save(replace(net, layers=tuple(replace(layer, weights="otherwise") if layer.name == "conv2"
                                   else layer for layer in net.layers)), str(file))
    made = plan(2, "data", network=str(file))
    said(hpcpar(2, command, "--plan", made, "--data", digits), 2, "layer 'conv2'",
         "can be planned, but not run")


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize(("machine", "device"), [("p100x4x4", "cpu"), ("local", "gpu")])
def test_servers_on_hosts_are_refused_on_gpus(command: str, machine: str, device: str, hpcpar: Run,
                                              plan: Make, digits: Path) -> None:
    made = plan(2, "data", machine=machine, synchronization="server-host")
    said(hpcpar(2, command, "--plan", made, "--data", digits, "--device", device), 2,
         "synchronization server-host can be planned and predicted for GPUs, but not run",
         "--synchronization server")


def test_a_plan_of_another_version_is_refused(hpcpar: Run, plan: Make, digits: Path,
                                              tmp_path: Path) -> None:
    data = json.loads(plan(2, "data").read_text())
    data["hpcpar_plan"] = 99
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    said(hpcpar(2, "run", "--plan", path, "--data", digits), 2, "version 99", "reads version 1",
         "hpcpar plan")


@pytest.mark.parametrize("command", ["run", "verify"])
def test_batch_normalization_of_one_value_is_refused(command: str, hpcpar: Run, plan: Make,
                                                     tmp_path: Path) -> None:
    """As PyTorch refuses it; `hpcpar plan` makes no such plan."""
    made = hpcpar(0, "data", "synthetic", tmp_path / "d.h5", "--input", "3x8x8", "--samples", 4)
    assert made.returncode == 0, made.stderr
    path = plan(2, "data", network="mobilenet_v2", input="3x8x8", batch=2)
    content = json.loads(path.read_text()) | {"batch": 1}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    done = hpcpar(2, command, "--plan", path, "--data", tmp_path / "d.h5")
    said(done, 2, "(batch normalization): Expected more than 1 value per channel when training")


@pytest.mark.parametrize("command", ["run", "verify"])
def test_the_network_of_a_stranger_s_plan_is_not_imported(command: str, hpcpar: Run, plan: Make,
                                                          digits: Path, tmp_path: Path) -> None:
    data = json.loads(plan(2, "data").read_text())
    (tmp_path / "bait.py").write_text("open(__file__ + '.caught', 'w')\n")
    data["network"]["name"] = f"{tmp_path / 'bait.py'}:net"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    words = ["--data", digits] if command == "run" else ["--steps", 1]
    said(hpcpar(2, command, "--plan", path, *words), 2, "unknown network", "hpcpar plan")
    assert not list(tmp_path.glob("*.caught"))


def test_a_missing_gpu_is_reported(hpcpar: Run, plan: Make, digits: Path) -> None:
    done = hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--device", "gpu",
                  CUDA_VISIBLE_DEVICES="-1")
    said(done, 2, "gpu", "--device cpu")


def test_a_missing_mpi_is_reported(plan: Make, digits: Path, tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')\n")
    env = clean_environment(
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    command = [sys.executable, "-m", "hpcpar", "run", "--plan", str(plan(1, "data")), "--data",
               str(digits)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    said(done, 2, "no usable MPI", "pip install 'hpcpar[mpi]'")


def test_separate_worlds_are_reported(hpcpar: Run, plan: Make, digits: Path) -> None:
    done = hpcpar(0, "run", "--plan", plan(1, "data"), "--data", digits, OMPI_COMM_WORLD_SIZE="4")
    said(done, 2, "4 processes", "srun --mpi=")


def test_a_checkpoint_of_another_network_is_refused(hpcpar: Run, plan: Make, digits: Path,
                                                    tmp_path: Path) -> None:
    save = tmp_path / "c.h5"
    done = hpcpar(1, "run", "--plan", plan(1, "data", network="mlp"), "--data", digits, "--steps",
                  2, "--checkpoint", save)
    assert done.returncode == 0, done.stderr
    words = ("run", "--plan", plan(2, "data"), "--data", digits)
    said(hpcpar(2, *words, "--resume", save), 2, "mlp", "lenet5")
    said(hpcpar(2, *words, "--checkpoint", save), 2, "exists; resume from it with --resume")
    said(hpcpar(2, *words, "--out", plan(2, "filter")), 2, "exists and is not a run record")


def test_momentum_out_of_range_is_refused(hpcpar: Run, plan: Make, digits: Path) -> None:
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--momentum", 1.5), 2,
         "momentum")


@pytest.mark.parametrize("option", ["--epochs", "--steps"])
def test_negative_lengths_are_refused(option: str, hpcpar: Run, plan: Make, digits: Path) -> None:
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, option, -1), 2, option)


def test_gpu_buffers_need_a_gpu(hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    told = "--transport nccl needs GPUs, but --device is cpu: add --device gpu, or drop"
    said(hpcpar(2, "calibrate", "--transport", "nccl", "-o", tmp_path / "m.toml"), 2, told)
    assert not (tmp_path / "m.toml").exists()
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--transport", "nccl"), 2,
         told)
    said(hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--math", "tf32"), 2,
         "--math tf32 needs GPUs")


def test_precisions_run_where_they_can(hpcpar: Run, plan: Make, digits: Path) -> None:
    words = ("--data", digits, "--steps", 1)
    mixed = plan(2, "data", precision="amp", machine="dgx-a100")
    half = hpcpar(2, "run", "--plan", mixed, *words)
    assert half.returncode == 0 and half.stderr.count("note: precision amp is slow on CPUs") == 1
    cores = hpcpar(2, "run", "--plan", plan(2, "data", precision="tf32", machine="dgx-a100"),
                   *words)
    assert cores.returncode == 0
    assert ("note: the plan's precision is tf32, but --device cpu computes products in fp32, so "
            "its prediction does not hold for this run") in cores.stderr


def test_a_record_that_cannot_be_written_is_refused(hpcpar: Run, plan: Make, digits: Path,
                                                    tmp_path: Path) -> None:
    """Found before the training, not after it."""
    done = hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--out",
                  tmp_path / "no" / "run.h5")
    said(done, 2, "run.h5")
    assert "epoch" not in done.stderr


def test_ranks_with_different_plans_are_refused(mpiexec: str, plan: Make, digits: Path) -> None:
    """Found before the first message, and by all ranks: nobody waits for what never comes."""
    job = [mpiexec]
    for count, strategy in ((2, "filter"), (1, "data")):
        job += [] if len(job) == 1 else [":"]
        job += ["-n", str(count), sys.executable, "-m", "hpcpar", "run", "--plan",
                str(plan(3, strategy)), "--data", str(digits)]
    done = subprocess.run(job, capture_output=True, text=True, timeout=LIMIT_S,
                          env=clean_environment())
    said(done, 1, "schedules differ", "rank 2 has step", "conv", "same plan file")
