"""Whole jobs, started with mpiexec as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcpar.cli.main import main
from tests.limits import LIMIT_S

#: The repository: some jobs train networks that are defined in tests/.
ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
# Under nohup, jobs would ignore the end of their terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def clean_environment(**extra: str) -> dict[str, str]:
    """Our environment without what a surrounding launcher left in it."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("PMI", "MPI_", "OMPI_", "PMIX", "HYDI", "SLURM_"))}
    found = os.pathsep.join(p for p in (str(ROOT), env.get("PYTHONPATH", "")) if p)
    return env | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": found} | extra


@pytest.fixture(scope="session")
def mpiexec() -> str:
    """The launcher beside this Python, or on PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.skip("no mpiexec: install the extra 'mpi'")
    return found


@pytest.fixture(scope="session")
def hpcpar(mpiexec: str) -> Run:
    """``hpcpar(ranks, *arguments)``: the finished job; ranks 0 runs it without a launcher."""

    def run(ranks: int, *arguments: Any, timeout: float = LIMIT_S,
            **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hpcpar", *map(str, arguments)]
        if ranks:
            command = [mpiexec, "-n", str(ranks), *command]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                              env=clean_environment(**env))

    return run


@pytest.fixture(scope="session")
def digits(hpcpar: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real handwritten digits."""
    pytest.importorskip("sklearn", reason="the digits come with the extra 'digits'")
    path = tmp_path_factory.mktemp("data") / "digits.h5"
    done = hpcpar(0, "data", "digits", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``plan(ranks, strategy, **options)``: a plan file for LeNet-5 on the digits, by the command
    within this process.
    """
    folder = tmp_path_factory.mktemp("plans")

    def make(ranks: int, strategy: str, **options: Any) -> Path:
        given = {"network": "lenet5", "input": "1x8x8", "machine": "local", "batch": 16} | options
        name = ("-".join(str(v) for v in (ranks, strategy, *options.values()))
                .replace(":", "_")
                .replace("/", "_"))
        path = folder / f"{name}.json"
        if not path.exists():
            if ":" in given["network"]:  # a network of the tests knows its own shape
                del given["input"]
            words = [w for k, v in given.items() for w in (f"--{k}", v)]
            # some dozen plans: a process for each would mostly load NumPy
            assert main(["plan", *map(str, words), "--ranks", str(ranks), "--strategy", strategy,
                         "-o", str(path)]) == 0
        return path

    return make


def summary(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON document of a finished ``hpcpar run --json``."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
