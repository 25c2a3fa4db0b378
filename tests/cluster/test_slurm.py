"""``hpcpar sweep --launcher slurm`` and ``hpcpar doctor`` under a real Slurm, and what both say to
a wrong ``srun --mpi``.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcpar.signals import STATUS
from tests.jobs.test_interrupted import has_begun, ranks

Sweep = Callable[..., "subprocess.CompletedProcess[str]"]


def words(out: Path, data: Path, *more: str, ranks: str = "1,2", steps: int = 3) -> list[str]:
    """The command of a sweep."""
    return [sys.executable, "-m", "hpcpar", "sweep", "strong", "--network", "lenet5", "--batch",
            "64", "--ranks", ranks, "--strategies",
            "data,filter", "--steps", str(steps), "--data", str(data), "--out", str(out),
            "--launcher", "slurm", "--ranks-per-node", "1",
            *more]


@pytest.fixture
def plain(slurm: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment without matplotlib: pictures are tested elsewhere, and take most of a small
    sweep's time.
    """
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "matplotlib.py").write_text("raise ImportError('left out')\n")
    return slurm | {"PYTHONPATH": os.pathsep.join((str(tmp_path / "plain"), slurm["PYTHONPATH"]))}


@pytest.fixture
def sweep(plain: dict[str, str], data: Path, tmp_path: Path) -> Sweep:
    """``sweep(*options)``: the finished command, in one folder."""

    def run(*more: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words(tmp_path / "out", data, *more, **options), capture_output=True,
                              text=True, timeout=100, env=plain)

    return run


def points(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The points of a sweep's JSON document, by case."""
    return {p["case"]: p for p in json.loads(done.stdout)["points"]}


def test_a_sweep_submits_runs_and_collects_its_cases(sweep: Sweep, tmp_path: Path) -> None:
    done = sweep("--json")
    assert done.returncode == 0, done.stderr
    assert "submitted jobs" in done.stderr  # one for each size
    found = points(done)
    assert {name: p["state"] for name, p in found.items()} == dict.fromkeys(
        ("data-p1-b64", "filter-p1-b64", "data-p2-b64", "filter-p2-b64"), "done")
    assert [p["nodes"] for p in found.values()] == [1, 1, 2, 2]
    assert all(p["measured"]["iteration_s"] > 0 for p in found.values())
    log = (tmp_path / "out/cases/data-p2-b64/log").read_text()
    assert "lenet5 on 2 ranks" in log
    assert (tmp_path / "out/report.html").exists()
    # the same command again finds everything done
    again = sweep("--json")
    assert again.returncode == 0 and "submitted" not in again.stderr
    assert points(again) == found


def test_an_interrupted_sweep_resumes(plain: dict[str, str], sweep: Sweep, data: Path,
                                      tmp_path: Path) -> None:
    """Ctrl-C leaves the jobs, and the same command collects them."""
    first = subprocess.Popen(words(tmp_path / "out", data, "--one-allocation"),
                             stderr=subprocess.PIPE, text=True, env=plain)
    assert first.stderr is not None
    line = ""
    while "submitted" not in line:
        line = first.stderr.readline()
        assert line, "the sweep ended before it submitted"
    (job,) = re.findall(r"\d+", line)
    first.send_signal(signal.SIGINT)
    said = first.stderr.read()
    assert first.wait(20) == 130
    assert f"jobs {job} go on" in said and f"scancel {job}" in said
    again = sweep("--one-allocation", "--json")
    assert again.returncode == 0 and "submitted" not in again.stderr, again.stderr
    assert {p["state"] for p in points(again).values()} == {"done"}


def test_failed_cases_run_again_on_request(sweep: Sweep) -> None:
    """A wrong --mpi gives worlds of one, which a run refuses, naming the right one."""
    failed = sweep("--mpi", "none", "--json")
    assert failed.returncode == 1
    assert "2 of 4 cases failed (data-p2-b64, filter-p2-b64)" in failed.stderr
    reason = points(failed)["data-p2-b64"]["reason"]
    assert "separate worlds of 1" in reason and "srun --mpi=pmi2" in reason
    assert points(failed)["data-p1-b64"]["state"] == "done"
    still = sweep("--json")
    assert still.returncode == 1 and "submitted" not in still.stderr
    mended = sweep("--retry", "--json")
    assert mended.returncode == 0 and {p["state"]
                                       for p in points(mended).values()} == {"done"}, mended.stderr


def test_a_cancelled_job_is_a_failure(slurm: dict[str, str], sweep: Sweep) -> None:
    begun = sweep("--no-wait", "--json", ranks="2", steps=100_000)
    assert begun.returncode == 0, begun.stderr
    assert {p["state"] for p in points(begun).values()} == {"submitted"}
    (job,) = re.findall(r"submitted job (\d+)", begun.stderr)
    time.sleep(1)
    subprocess.run(["scancel", job], check=True, env=slurm)
    done = sweep("--json", ranks="2", steps=100_000)
    assert done.returncode == 1
    assert all(f"job {job} ended (CANCELLED) before this case did" in p["reason"]
               for p in points(done).values())


def test_a_job_that_slurm_rejects_is_bad_input(sweep: Sweep) -> None:
    done = sweep("--partition", "none", ranks="2")
    assert done.returncode == 2
    assert "Slurm does not take" in done.stderr and "partition" in done.stderr


@pytest.mark.parametrize(("mpi", "status", "told"), [
    ("pmi2", "ok", "2 ranks on 2 node(s); the world has 2 rank(s)"),
    ("none", "problem", "MPI sees"),
])
def test_doctor_sees_the_launcher(slurm: dict[str, str], mpi: str, status: str, told: str) -> None:
    """Two ranks on two nodes are one world; ranks that came up alone are a problem, whose remedy is
    the --mpi to use.
    """
    command = ["srun", f"--mpi={mpi}", "--nodes=2", "--ntasks=2", sys.executable, "-m", "hpcpar",
               "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=slurm)
    # srun's own status is the highest of its ranks'
    assert done.returncode == (0 if status == "ok" else 2), done.stderr
    (launcher,) = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == "launcher"]
    assert launcher["status"] == status and launcher["what"].startswith(
        "srun (Slurm step") and told in launcher["what"]
    assert status == "ok" or "--mpi=pmi2" in launcher["remedy"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_while_ranks_start_ends_the_job_cleanly(name: str, slurm: dict[str, str],
                                                         data: Path, tmp_path: Path) -> None:
    """Slurm sends it to all processes of the job, watchers and ranks."""
    subprocess.run([sys.executable, "-m", "hpcpar", "plan", "--network", "lenet5", "--strategy",
                    "data", "--batch", "16", "--ranks", "2", "-o", tmp_path / "plan.json"],
                   check=True, env=slurm, capture_output=True)
    command = ["srun", "--mpi=pmi2", "--nodes=2", "--ntasks=2", f"--job-name={tmp_path.name}",
               sys.executable, "-m", "hpcpar", "run", "--plan", tmp_path / "plan.json", "--data",
               data, "--epochs", "1000000", "--checkpoint", tmp_path / "c.h5"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env=slurm) as job:
        try:
            deadline = time.monotonic() + 60
            while len([*filter(has_begun, ranks(tmp_path))]) < 2:
                assert job.poll() is None and time.monotonic() < deadline
                time.sleep(0.005)
            time.sleep(random.Random(name).uniform(0, 0.3))
            subprocess.run(["scancel", f"--signal={name[3:]}", f"--name={tmp_path.name}"],
                           check=True, env=slurm)
            _, err = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == STATUS, err
    assert err.count(f"stopped by {name} on rank") == 1 and "Traceback" not in err
