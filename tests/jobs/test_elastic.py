"""An elastic run whose ranks are killed trains as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from hpcpar.train import record
from hpcpar.train.stop import STATUS
from tests.jobs.conftest import Run, clean_environment, summary
from tests.jobs.test_interrupted import WORDS, parent, ranks

Make = Callable[..., Path]
#: A small rate: a larger one amplifies rounding, which differs from plan to plan.
TRAINING = (*WORDS, "--rate", 1e-4)
#: Seconds that anything of the test may take.
LIMIT_S = 90


def test_killed_ranks_change_the_plan_and_not_the_training(
        hpcpar: Run, plan: Make, digits: Path, tmp_path: Path) -> None:
    """Over three changes of the number of ranks, every iteration has the serial one's loss."""
    words = ["--plan", plan(3, "data", dtype="float64"), "--data", digits, "--epochs", 10**6,
             "--checkpoint", tmp_path / "c.h5", "--checkpoint-every", "5steps", "--out",
             tmp_path / "run.h5", "--elastic", "--elastic-return", "1s", *TRAINING]
    command = [sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    log = tmp_path / "log"
    with open(log, "w") as err, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err,
                                                 env=clean_environment()) as job:

        def wait_for(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + LIMIT_S
            while not condition():
                assert job.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)

        def wait_for_a_checkpoint() -> None:
            before = saved(tmp_path)
            wait_for(lambda: saved(tmp_path) != before)

        for left in ("2 ranks", "1 rank"):
            wait_for_a_checkpoint()
            alive = {parent(pid): pid for pid in ranks(tmp_path)}
            os.kill(next(pid for watcher, pid in alive.items() if watcher in alive.values()),
                    signal.SIGKILL)
            wait_for(lambda left=left: f"going on with {left}" in log.read_text())
        wait_for(lambda: "lost ranks are back" in log.read_text())
        starts = log.read_text().count("elastic: ")
        wait_for(lambda: log.read_text().count("elastic: ") > starts)
        wait_for_a_checkpoint()
        job.terminate()
        assert job.wait(LIMIT_S) == STATUS, log.read_text()
    with h5py.File(tmp_path / "c.h5") as f:
        steps = int(f["state"].attrs["step"])
    losses = np.full(steps, np.nan)
    for path in sorted(tmp_path.glob("run*.h5"), key=lambda p: p.stat().st_mtime):
        part = record.read(str(path))
        losses[part.iterations_done] = part.loss
    alone = hpcpar(1, "run", "--plan", plan(1, "data", dtype="float64"), "--data", digits,
                   "--steps", steps, *TRAINING)
    known = ~np.isnan(losses)  # a record that was killed lacks its last seconds
    assert known[0] and known[-1] and known.sum() > 20
    np.testing.assert_allclose(losses[known], np.array(summary(alone)["losses"])[known], rtol=1e-9)


def saved(folder: Path) -> int:
    path = folder / "c.h5"
    return path.stat().st_mtime_ns if path.exists() else 0
