"""``hpcpar doctor`` as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.conftest import Run, clean_environment
from tests.limits import LIMIT_S


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {f["subject"]: f for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize("ranks", [0, 2])
def test_doctor_reports_every_rank(ranks: int, hpcpar: Run) -> None:
    done = hpcpar(ranks, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = findings(done)
    assert f"the world has {max(1, ranks)} rank(s) on 1 node(s)" in found["launcher"]["what"]
    assert len(json.loads(done.stdout)["ranks"]) == max(1, ranks)
    assert {"software", "BLAS", "MPI", "threads", "binding", "memory", "GPUs", "HDF5",
            "folder"} <= set(found)


def test_separate_worlds_are_reported(hpcpar: Run) -> None:
    done = hpcpar(0, "doctor", "--json", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="0")
    assert done.returncode == 2
    found = findings(done)["launcher"]
    assert (found["status"] == "problem"
            and "separate worlds of 1" in found["what"]
            and "srun --mpi=" in found["remedy"])
    other = hpcpar(0, "doctor", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_RANK="3")
    assert other.returncode == 2 and "problem" not in other.stdout, "one of them speaks"


def test_a_missing_mpi4py_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')\n")
    env = clean_environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    done = subprocess.run([sys.executable, "-m", "hpcpar", "doctor", "--json"], capture_output=True,
                          text=True, timeout=LIMIT_S, env=env)
    assert done.returncode == 2, done.stderr
    assert "pip install 'hpcpar[mpi]'" in findings(done)["MPI"]["remedy"]


def test_a_number_of_threads_that_is_not_a_number_is_reported(hpcpar: Run) -> None:
    done = hpcpar(0, "doctor", OPENBLAS_NUM_THREADS="many")
    assert done.returncode == 2
    assert (done.stderr.strip()
            == "hpcpar: OPENBLAS_NUM_THREADS=many: give a number of threads, or unset it")
