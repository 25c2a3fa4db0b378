"""Runs that emulate computing: real messages, and steps that take their time and do nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcpar.api.sources import plan_and_machine
from hpcpar.plan import plan as plans
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import Comm, Compute
from hpcpar.simulation.simulate import Simulator
from hpcpar.train import record_file
from hpcpar.train.record_with_schedule import with_schedule
from tests.jobs.conftest import Run

Make = Callable[..., Path]


@pytest.mark.parametrize(("ranks", "strategy", "more"), [
    (4, "data", {}), (3, "spatial", {}), (2, "pipeline", {"order": "1f1b", "microbatches": 4}),
    (4, "owt-c", {}), (1, "data", {})])
def test_computing_takes_the_predicted_time_and_messages_are_real(
        hpcpar: Run, plan: Make, digits: Path, tmp_path: Path, ranks: int, strategy: str,
        more: dict[str, object]) -> None:
    path, out = plan(ranks, strategy, batch=96, **more), tmp_path / "run.h5"
    done = hpcpar(ranks, "run", "--plan", path, "--data", digits, "--steps", 12, "--device",
                  "emulate", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "loss and accuracy are meaningless" in done.stderr
    run = record_file.read(str(out))
    given = plans.load(str(path))
    simulator = Simulator(given.network.build(), given, plan_and_machine(given, None)[1])
    tasks = np.array([isinstance(step, Compute) for step in simulator.steps])
    expected_s = 12 * sum(simulator.compute_s(step) for step in simulator.steps
                          if isinstance(step, Compute))
    # sleeps are never short in sum, only too long
    assert (run.seconds[:, :, tasks].sum(axis=(1, 2)) >= 0.99 * expected_s).all()
    for i, step in enumerate(with_schedule(run).schedule.steps):
        if isinstance(step, Comm):
            assert run.sent_bytes[:, i].tolist() == sent(step, ranks).n_bytes.tolist()


@pytest.mark.parametrize("words", [("--checkpoint", "c.h5"), ("--resume", "c.h5")])
def test_an_emulated_run_refuses_to_save(hpcpar: Run, plan: Make, digits: Path, tmp_path: Path,
                                         words: tuple[str, str]) -> None:
    done = hpcpar(2, "run", "--plan", plan(2, "data"), "--data", digits, "--device", "emulate",
                  words[0], tmp_path / words[1])
    assert done.returncode == 2
    assert "--device emulate trains nothing" in done.stderr
