"""The table of metrics of a training."""

from __future__ import annotations

from pathlib import Path

from hpcpar.report.metrics import MetricsFile
from hpcpar.train.loop import Progress


def now(epoch: int, done: bool) -> Progress:
    return Progress(epoch, 2, 10 * epoch, 20, 0.5, 0.01, test_loss=0.25, epoch_done=done)


def test_a_row_for_each_epoch(tmp_path: Path) -> None:
    """A training that goes on appends; what was not measured stays empty."""
    path = tmp_path / "run.csv"
    for epoch in 1, 2:
        table = MetricsFile(str(path))
        table.add(now(epoch, False))
        table.add(now(epoch, True))
    assert path.read_text().splitlines() == [
        "epoch,step,loss,train_accuracy,test_accuracy,test_loss,iteration_s",
        "1,10,0.5,,,0.25,0.01", "2,20,0.5,,,0.25,0.01"]


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    MetricsFile("").add(now(1, True))
    assert list(tmp_path.iterdir()) == []
