"""An elastic run whose ranks are killed trains as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpcpar.train import record
from tests.jobs.conftest import Run, clean_environment, summary
from tests.jobs.test_interrupted import WORDS, parent, ranks

Make = Callable[..., Path]
STEPS = 1500
#: A small rate: a larger one amplifies rounding, which differs from plan to plan.
TRAINING = (*WORDS, "--rate", 1e-4)


def test_killed_ranks_change_the_plan_and_not_the_training(
        hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    """Over three changes of the number of ranks, every iteration has the serial one's loss: each
    sample of an epoch counts once.
    """
    words = ["--plan", plan(3, "data", dtype="float64"), "--data", digits, "--steps", STEPS,
             "--checkpoint", tmp_path / "c.h5", "--checkpoint-every", "5steps", "--out",
             tmp_path / "run.h5", "--elastic", "--elastic-return", "1s", *TRAINING]
    command = [sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=clean_environment()) as job:
        for kill in range(2):
            before = saved(tmp_path)
            while saved(tmp_path) == before and job.poll() is None:
                time.sleep(0.02)
            alive = {parent(pid): pid for pid in ranks(tmp_path)}
            os.kill(next(pid for watcher, pid in alive.items() if watcher in alive.values()),
                    signal.SIGKILL)
            while len(list(tmp_path.glob("*.plan.json"))) == kill and job.poll() is None:
                time.sleep(0.02)
        _, err = job.communicate(timeout=90)
    assert job.returncode == 0, err
    assert "going on with 2 ranks" in err and "going on with 1 rank" in err
    assert "lost ranks are back" in err
    losses = np.full(STEPS, np.nan)
    for path in sorted(tmp_path.glob("run*.h5"), key=lambda p: p.stat().st_mtime):
        part = record.read(str(path))
        losses[part.iterations_done] = part.loss
    alone = hpcpar(1, "run", "--plan", plan(1, "data", dtype="float64"), "--data", digits,
                   "--steps", STEPS, *TRAINING)
    known = ~np.isnan(losses)  # a record that was killed lacks its last seconds
    assert known[-1] and known.sum() > STEPS / 2
    np.testing.assert_allclose(losses[known], np.array(summary(alone)["losses"])[known], rtol=1e-9)


def saved(folder: Path) -> int:
    path = folder / "c.h5"
    return path.stat().st_mtime_ns if path.exists() else 0
