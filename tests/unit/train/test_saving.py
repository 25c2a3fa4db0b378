"""When a training run is saved and when it stops, on one rank whose clock is the test's."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hpcpar.errors import InputError, RunError
from hpcpar.io.background_writer import BackgroundWriter
from hpcpar.process import signals
from hpcpar.process.signals import StopRequest
from hpcpar.train import saving
from hpcpar.train.job_options import SaveInterval
from hpcpar.train.saving import Saver


class OneRank:
    """A world of one rank."""

    rank = 0

    def __init__(self) -> None:
        self.comm = self

    def agree(self, action: Callable[[], None]) -> None:
        action()

    def allgather(self, value: str) -> list[str]:
        return [value]


class Case:
    """A saver, and what it has saved."""

    def __init__(self, patch: pytest.MonkeyPatch, every: SaveInterval,
                 limit_s: float = 0.0) -> None:
        self.now, self.saved, self.records, self.fails = 1000.0, [], [], False
        self.order: list[str] = []
        self.step = 0
        for module in (saving, signals):
            patch.setattr(module.time, "monotonic", lambda: self.now)
        patch.setattr(signals.time, "time", lambda: self.now)
        patch.delenv("SLURM_JOB_END_TIME", raising=False)
        self.stop = StopRequest(limit_s)
        world: Any = OneRank()
        self.saver = Saver(world, every, self.stop, lambda: self._write(self.saved, "saved"),
                           lambda whole: self._write(self.records, "whole" if whole else "part"))

    def _write(self, where: list[int], what: str) -> Callable[[], None]:
        step = self.step

        def write() -> None:
            if self.fails:
                raise InputError("cannot write checkpoint c.h5: No space left on device")
            where.append(step)
            self.order.append(f"{what} {step}")

        return write

    def run(self, steps: int, per_epoch: int = 10, seconds: float = 1.0) -> str:
        """Iterations of a second each."""
        for _ in range(steps):
            asked = self.saver.ask()
            self.step += 1
            self.now += seconds
            stops = self.saver.receive(asked)
            if stops:
                break
            self.saver.save_if_due(self.step, self.step % per_epoch == 0)
        self.saver.finish(self.step)
        return self.saver.reason


def test_checkpoints_follow_every_epoch_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval())
    assert case.run(25) == "" and case.saved == [10, 20, 25]


def test_checkpoints_follow_a_number_of_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval(steps=8))
    assert case.run(24) == "" and case.saved == [8, 16, 24]


def test_checkpoints_follow_an_interval_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the iteration in which rank 0 asks for it."""
    case = Case(monkeypatch, SaveInterval(seconds=5.5))
    case.run(20)
    assert case.saved == [7, 13, 19, 20]


def test_records_are_saved_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval())
    case.run(60, per_epoch=1000)
    assert 4 <= len(case.records) <= 6 and case.records[-1] == 60
    short = Case(monkeypatch, SaveInterval())
    short.run(1000, per_epoch=10**6, seconds=1e-3)
    assert short.records == [1000]


def test_the_record_is_written_before_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the two leaves a record that has every iteration of the checkpoint."""
    case = Case(monkeypatch, SaveInterval(steps=8))
    case.run(20)
    assert case.order == ["part 8", "saved 8", "part 16", "saved 16", "whole 20", "saved 20"]
    ends = Case(monkeypatch, SaveInterval(steps=8))
    ends.run(16)
    assert ends.order == ["part 8", "saved 8", "part 16", "saved 16", "whole 16"]


def test_a_signal_stops_after_the_next_iteration_with_a_checkpoint(
        monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval())
    with case.stop:
        signal.raise_signal(signal.SIGUSR1)
        assert case.run(9) == "SIGUSR1 on rank 0"
    assert case.saved == [1] and case.records == [1]


def test_a_second_interrupt_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    now = time.time()
    monkeypatch.setattr(signals.time, "time", lambda: now)
    with StopRequest() as request:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # passed on twice
        assert request.due(0.0) and request.reason == "SIGINT"
        now += 1.0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_time_limit_leaves_time_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval(), limit_s=30.0)
    assert case.run(100, per_epoch=1000) == "its time limit"
    assert case.saved == [case.step] and case.step < 30 - signals.MARGIN_S + 3


def test_the_end_of_a_slurm_job_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval())
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1012")
    request = StopRequest(500.0)
    assert not request.due(1.0)
    case.now += 2.5
    assert request.due(1.0) and request.reason == "its time limit"


def test_a_full_disk_ends_the_run_at_the_next_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, SaveInterval(steps=5))
    case.fails = True
    with pytest.raises(RunError, match="No space left"):
        case.run(100)
    assert case.step <= 10


def test_files_are_written_in_the_background_one_by_one() -> None:
    writer, may_go, order = BackgroundWriter(), threading.Event(), []
    writer.submit(lambda: (may_go.wait(), order.append(1)))  # type: ignore[func-returns-value]
    writer.submit(lambda: order.append(2))
    assert order == [] and not writer.has_failed
    may_go.set()
    writer.finish()
    assert order == [1, 2]
