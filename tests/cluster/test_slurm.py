"""``hpcpar doctor`` under a real ``srun``, with the right and a wrong ``--mpi``, and signals."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcpar.process.signals import STATUS
from tests.jobs.test_interrupted import has_begun, ranks
from tests.limits import LIMIT_S, wait_until


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=slurm)
    # srun's own status is the highest of its ranks'
    assert done.returncode == (0 if status == "ok" else 2), done.stderr
    (launcher,) = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == "launcher"]
    assert launcher["status"] == status and launcher["what"].startswith(
        "srun, 2 ranks, within Slurm job ") and told in launcher["what"]
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
            wait_until(lambda: len([*filter(has_begun, ranks(tmp_path))]) >= 2, job)
            time.sleep(random.Random(name).uniform(0, 0.3))
            subprocess.run(["scancel", f"--signal={name[3:]}", f"--name={tmp_path.name}"],
                           check=True, env=slurm)
            _, err = job.communicate(timeout=LIMIT_S)
        finally:
            job.kill()
    assert job.returncode == STATUS, err
    assert err.count(f"stopped by {name} on rank") == 1 and "Traceback" not in err
