"""An optimizer from outside the package runs, is saved and goes on, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcpar.api.plan import plan
from tests import outside
from tests.jobs.conftest import ROOT, clean_environment
from tests.limits import LIMIT_S


def job(mpiexec: str, ranks: int, *words: Any) -> subprocess.CompletedProcess[str]:
    """`hpcpar` in a process that has registered the entries."""
    command = [mpiexec, "-n", ranks, sys.executable, ROOT / "tests" / "outside.py", *words]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S,
                          env=clean_environment())


def tensors(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, x: found.update({name: x[()]})
                     if isinstance(x, h5py.Dataset) else None)
    return found


@pytest.mark.parametrize(("ranks", "synchronization"), [(1, "allreduce"), (2, "sharded")])
def test_a_resumed_training_equals_an_uninterrupted_one(ranks: int, synchronization: str,
                                                        mpiexec: str, digits: Path,
                                                        tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with outside.registered():
        plan("lenet5", ranks, 16, input="1x8x8", strategy="data", optimizer="nesterov",
             synchronization=synchronization).save(str(path))
    words = ("run", "--plan", path, "--data", digits, "--json")
    whole, part = tmp_path / "whole.h5", tmp_path / "part.h5"
    done = job(mpiexec, ranks, *words, "--steps", 6, "--checkpoint", whole)
    assert done.returncode == 0, done.stderr
    assert job(mpiexec, ranks, *words, "--steps", 3, "--checkpoint", part).returncode == 0
    rest = job(mpiexec, ranks, *words, "--steps", 6, "--checkpoint", part, "--resume", part)
    assert rest.returncode == 0, rest.stderr
    assert json.loads(rest.stdout)["losses"] == json.loads(done.stdout)["losses"][3:]
    expected, found = tensors(whole), tensors(part)
    assert "optimizer/conv1/weight_velocity" in expected and expected.keys() == found.keys()
    assert all(np.array_equal(value, found[name]) for name, value in expected.items())


def test_verify_runs_outside_strategies_and_optimizers(mpiexec: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with outside.registered():
        plan("lenet5", 4, 16, strategy="halves:2x2", optimizer="nesterov").save(str(path))
    done = job(mpiexec, 4, "verify", "--plan", path, "--steps", 2)
    assert done.returncode == 0 and "The plan trains as one rank does" in done.stdout, done.stderr
