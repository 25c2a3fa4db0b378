"""The numbers of a training run: a table of its epochs, and event files of TensorBoard."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcpar.errors import InputError
from hpcpar.report.metrics import Metrics
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.loop import Progress

PIXELS = ClassCounts(np.array([[8, 4], [6, 6], [5, 3]]))


def now(epoch: int, done: bool, **more: Any) -> Progress:
    return Progress(epoch, 2, 10 * epoch, 20, 0.5, 0.01, test_loss=0.25 if done else None,
                    rate=0.125, epoch_done=done, **more)


def test_a_row_for_each_epoch(tmp_path: Path) -> None:
    """A training run that goes on appends; what was not measured stays empty."""
    path = tmp_path / "run.csv"
    for epoch in 1, 2:
        metrics = Metrics(str(path), "", 0, 1)
        metrics.add(now(epoch, False))
        metrics.add(now(epoch, True))
        metrics.close()
    assert path.read_text().splitlines() == [
        "epoch,step,loss,train_accuracy,test_accuracy,test_loss,iteration_s,rate",
        "1,10,0.5,,,0.25,0.01,0.125", "2,20,0.5,,,0.25,0.01,0.125"]


def test_overlaps_of_pixels_have_columns_by_class(tmp_path: Path) -> None:
    """Also where a part was not counted, so that rows have the same columns."""
    path = tmp_path / "run.csv"
    for pixels in None, PIXELS:
        Metrics(str(path), "", 2, 1).add(
            now(1, True, pixel_classes=2, train_pixels=PIXELS, test_pixels=pixels))
    names, *rows = (line.split(",") for line in path.read_text().splitlines())
    without, found = (dict(zip(names, row, strict=True)) for row in rows)
    assert float(found["train_dice_0"]) == 10 / 14 and float(found["test_iou_0"]) == 5 / 9
    assert found["train_dice"] == found["test_dice_1"] == str(6 / 10)
    assert without["test_dice_1"] == without["test_iou"] == "" and without["train_dice_1"]


def test_a_table_with_other_columns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    Metrics(str(path), "", 0, 1).add(now(1, True))
    before = path.read_text()
    with pytest.raises(InputError, match=r"run.csv has other columns .*: choose another name"):
        Metrics(str(path), "", 3, 1)
    assert path.read_text() == before


def test_a_row_cut_off_by_a_kill_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    Metrics(str(path), "", 0, 1).add(now(1, True))
    path.write_text(path.read_text() + "2,20,0.5")
    Metrics(str(path), "", 0, 1).add(now(2, True))
    assert [len(line.split(",")) for line in path.read_text().splitlines()] == [8, 8, 3, 8]


def test_a_table_is_checked_before_event_files_are_made(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is missing (extra 'tensorboard')")
    (tmp_path / "run.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="other columns"):
        Metrics(str(tmp_path / "run.csv"), str(tmp_path / "events"))
    assert [path.name for path in tmp_path.iterdir()] == ["run.csv"]


def test_no_metrics_without_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Metrics().add(now(1, True))
    assert list(tmp_path.iterdir()) == []


def events(folder: Path) -> list[Any]:
    """The events of all files of a folder: each a length, a checksum, the event, a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12:at + 12 + length]))
            at += length + 16
    return found


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    return sorted((value.tag, event.step, value.simple_value)
                  for event in events(folder) for value in event.summary.value)


def test_event_files_hold_every_iteration_and_the_rows_of_the_table(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is missing (extra 'tensorboard')")
    folder, table = tmp_path / "events", tmp_path / "run.csv"
    metrics = Metrics(str(table), str(folder), 2, 1)
    metrics.add(now(0, False, pixel_classes=2))
    metrics.add(now(1, True, pixel_classes=2, train_pixels=PIXELS))
    metrics.close()
    names, last = (line.split(",") for line in table.read_text().splitlines())
    row = {(name, 10, float(np.float32(value))) for name, value in zip(names, last, strict=True)
           if value and name not in ("epoch", "step")}
    early = {("loss", 0, 0.5), ("rate", 0, 0.125), ("iteration_s", 0, float(np.float32(0.01)))}
    assert set(scalars(folder)) == row | early


def test_a_resumed_training_replaces_later_steps_in_a_new_file(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is missing (extra 'tensorboard')")
    (tmp_path / "notes.txt").touch()
    for number, first in enumerate((1, 11)):
        metrics = Metrics("", str(tmp_path), 0, first)
        metrics.add(now(first // 10, False))
        metrics.close()
        (file,) = tmp_path.glob("events*")
        file.rename(tmp_path / f"part{number}")  # files of one second have one name
    starts = [event.step for event in events(tmp_path) if event.HasField("session_log")]
    assert starts == [1, 11] and (tmp_path / "notes.txt").exists()
    assert [step for name, step, _ in scalars(tmp_path) if name == "loss"] == [0, 10]


def test_unwritable_outputs_are_refused_at_the_start(tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tensorboardX", None)
        with pytest.raises(InputError, match=r"pip install hpcpar\[tensorboard\]"):
            Metrics("", str(tmp_path / "events"), 0, 1)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"cannot write .*nowhere/run.csv .No such file"):
        Metrics(str(tmp_path / "nowhere" / "run.csv"))


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is missing (extra 'tensorboard')")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file.* .*choose another name"):
        Metrics("", str(tmp_path / "file"))
