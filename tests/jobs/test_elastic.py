"""An elastic run whose ranks are killed trains as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from hpcpar.process.signals import STATUS
from hpcpar.train import record_file
from tests.jobs.conftest import Run, clean_environment, summary
from tests.jobs.test_interrupted import WORDS, parent, ranks
from tests.limits import LIMIT_S, wait_until

Make = Callable[..., Path]
#: A small rate: a larger one amplifies rounding, which differs from plan to plan.
TRAINING = (*WORDS, "--rate", 1e-4)


class Elastic:
    """An elastic run of three ranks, watched from outside."""

    def __init__(self, folder: Path, job: subprocess.Popen[bytes]) -> None:
        self.folder, self.job = folder, job

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def ranks(self) -> list[int]:
        """Numbers of ranks of its jobs so far."""
        return [int(n) for n in re.findall(r"^elastic: (\d) ranks?, ", self.log, re.MULTILINE)]

    @property
    def losses(self) -> int:
        return self.log.count("continuing with")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.job)

    def wait_for_a_checkpoint(self) -> None:
        path = self.folder / "c.h5"
        before = path.stat().st_mtime_ns if path.exists() else 0
        self.wait_for(lambda: path.exists() and path.stat().st_mtime_ns != before)

    def kill_a_rank(self) -> None:
        """Until one is lost: a job may be just ending, to take lost ranks back."""
        before = self.losses
        while self.losses == before:
            self.wait_for_a_checkpoint()
            jobs, alive = len(self.ranks), {parent(pid): pid for pid in ranks(self.folder)}
            for pid in [pid for watcher, pid in alive.items() if watcher in alive.values()][:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                # another job begins in any case
                self.wait_for(lambda jobs=jobs: len(self.ranks) > jobs)


def test_killed_ranks_change_the_plan_but_not_the_training(hpcpar: Run, plan: Make, digits: Path,
                                                           tmp_path: Path) -> None:
    """Over three changes of the number of ranks, every iteration has the serial one's loss."""
    words = ["--plan", plan(3, "data", precision="fp64", batch=48), "--data", digits, "--epochs",
             10**6, "--checkpoint", tmp_path / "c.h5", "--checkpoint-every", "5steps", "--out",
             tmp_path / "run.h5", "--elastic", "--elastic-return", "4s", *TRAINING]
    command = [sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    with open(tmp_path / "log", "w") as err, subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=err, env=clean_environment()) as job:
        run = Elastic(tmp_path, job)
        try:
            run.kill_a_rank()
            run.kill_a_rank()
            run.wait_for(lambda: "lost ranks are back" in run.log and run.ranks[-1] == 3)
            for _ in range(5):  # 20 iterations and more
                run.wait_for_a_checkpoint()
        finally:
            job.terminate()
        assert job.wait(LIMIT_S) == STATUS, run.log
        assert run.ranks[:2] == [3, 2] and len(run.ranks) >= 4
    with h5py.File(tmp_path / "c.h5") as f:
        steps = int(f["state"].attrs["step"])
    losses = np.full(steps, np.nan)
    for path in sorted(tmp_path.glob("run*.h5"), key=lambda p: p.stat().st_mtime):
        part = record_file.read(str(path))
        losses[part.iterations_done] = part.loss
    alone = hpcpar(1, "run", "--plan", plan(1, "data", precision="fp64", batch=48), "--data",
                   digits, "--steps", steps, *TRAINING)
    known = ~np.isnan(losses)  # a record that was killed lacks its last seconds
    assert known[-20:].all()
    np.testing.assert_allclose(losses[known], np.array(summary(alone)["losses"])[known], rtol=1e-9)



def test_ranks_end_when_their_supervisor_is_gone(plan: Make, digits: Path, tmp_path: Path) -> None:
    """Killed, or by the end of its terminal; another one goes on at once, and nothing is left."""
    words = ["--plan", plan(2, "data"), "--data", digits, "--epochs", 10**6, "--checkpoint",
             tmp_path / "c.h5", "--checkpoint-every", "20steps", "--elastic"]
    command = [sys.executable, "-m", "hpcpar", "run", *map(str, words)]
    for jobs, number, status in ((1, signal.SIGKILL, -signal.SIGKILL), (2, signal.SIGHUP, STATUS)):
        with open(tmp_path / "log", "a") as err, subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=err, env=clean_environment()) as job:
            run = Elastic(tmp_path, job)
            try:
                while run.log.count("lenet5 on 2 ranks") < jobs:
                    run.wait_for_a_checkpoint()
            finally:
                job.send_signal(number)
            assert job.wait(LIMIT_S) == status, run.log
        command += ["--resume", str(tmp_path / "c.h5")] * (jobs == 1)
    wait_until(lambda: not ranks(tmp_path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.h5", "log"]
    assert run.log.count("stopped by SIGUSR1") == 2 and "written by another job" not in run.log
