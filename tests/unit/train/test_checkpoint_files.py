"""Older checkpoints beside the newest: only files of the same training are deleted or replaced."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcpar.errors import InputError
from hpcpar.train import checkpoint
from hpcpar.train.checkpoint import CheckpointState
from hpcpar.train.checkpoint_files import CheckpointFiles

START = CheckpointState(0, 0, 0, 3, "lenet5", (1, 8, 8), 10, "momentum", "0123456789abcdef")


def content(step: int, training: str = START.training) -> memoryview:
    return checkpoint.image((), (), replace(START, step=step, training=training))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.h5"


def older(path: Path, step: int | str) -> Path:
    return path.with_name(f"w.step{step}.h5")


def files(path: Path, keep: int = 2, resume: Path | None = None, **options: Any) -> CheckpointFiles:
    """The files of a run; with `resume`, one that goes on from there."""
    start = START if resume is None else checkpoint.read_state(str(resume))
    return CheckpointFiles(str(path), keep, str(resume or ""), start, **options)


def train(run: CheckpointFiles, path: Path, *steps: int) -> list[str]:
    """Writes checkpoints; returns the names of all files."""
    for step in steps:
        run.write(content(step), step)
        assert checkpoint.read_state(str(path)).step == step
    return sorted(p.name for p in path.parent.iterdir())


def test_the_newest_checkpoints_stay(path: Path) -> None:
    assert train(files(path, 3), path, 5, 10, 15, 20) == ["w.h5", "w.step10.h5", "w.step15.h5"]
    for step in (10, 15):
        assert checkpoint.read_state(str(older(path, step))).step == step
    # the run that goes on continues to delete them
    assert train(files(path, 3, path), path, 25) == ["w.h5", "w.step15.h5", "w.step20.h5"]
    assert train(files(path, 1, path), path, 30) == ["w.h5", "w.step15.h5", "w.step20.h5"]


def test_files_of_others_stay(path: Path) -> None:
    """Text, checkpoints of another training, copies under another number, links, folders; also
    those with higher numbers, which do not displace the run's own.
    """
    for step in (1, 3, 300):
        older(path, step).write_text("mine")
    checkpoint.write(str(older(path, 5)), content(5, "another training"))
    checkpoint.write(str(older(path, 7)), content(6))
    checkpoint.write(str(older(path, "08")), content(8))
    checkpoint.write(str(older(path, 9)), content(9, ""))
    checkpoint.write(str(path.with_name("kept.h5")), content(11))
    older(path, 11).symlink_to("kept.h5")
    older(path, 13).mkdir()
    before = {p.name: p.read_bytes() for p in path.parent.iterdir() if p.is_file()}
    train(files(path), path, 20, 40)
    names = train(files(path, resume=path), path, 60)
    assert names == sorted([*before, "w.step13.h5", "w.h5", "w.step40.h5"])
    assert {name: (path.parent / name).read_bytes() for name in before} == before


def test_a_file_of_another_user_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(files(path), path, 20, 40)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert train(files(path, resume=path), path, 60) == ["w.h5", "w.step20.h5", "w.step40.h5"]


def test_a_file_that_somebody_replaces_meanwhile_stays(path: Path) -> None:
    run = files(path)
    train(run, path, 20, 40)
    shutil.copy(path, older(path, 20))
    assert train(run, path, 60) == ["w.h5", "w.step20.h5", "w.step40.h5"]
    older(path, 40).unlink()
    assert train(run, path, 80) == ["w.h5", "w.step20.h5", "w.step60.h5"]


@pytest.mark.parametrize("kind", ["text", "folder", "link", "other training"])
def test_a_foreign_file_in_the_way_is_refused_first(kind: str, path: Path) -> None:
    place = older(path, 40)
    if kind == "text":
        place.write_text("mine")
    elif kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to("nowhere")
    else:
        checkpoint.write(str(place), content(40, "another"))
    run = files(path)
    refused = r"w\.step40\.h5 exists, and this training run did not write it: it is not replaced"
    with pytest.raises(InputError, match=refused):
        run.require_free(lambda step: step % 20 == 0, 60)
    run.require_free(lambda step: step % 20 == 0, 40)  # the last one gets no number
    run.require_free(lambda step: step % 30 == 0, 60)
    files(path, keep=1).require_free(lambda step: True, 60)
    # it comes after the check
    with pytest.raises(InputError, match=refused):
        train(run, path, 20, 40, 60)
    assert os.path.lexists(place) and checkpoint.read_state(str(path)).step == 40
    # the resumed run would have to replace it at once
    with pytest.raises(InputError, match=refused):
        files(path, resume=path).require_free(lambda step: False, 60)


def test_checkpoints_of_the_future_are_replaced_on_request(path: Path) -> None:
    """A training goes back to an older checkpoint: what it did after that is not deleted unasked.
    """
    train(files(path, 3), path, 20, 40, 60)
    shutil.move(path, path.with_name("last.h5"))
    back = files(path, 3, older(path, 20))
    with pytest.raises(InputError, match=r"w\.step40\.h5 exists"):
        back.require_free(lambda step: step % 20 == 0, 80)
    back.require_free(lambda step: step % 30 == 0, 80)
    asked = files(path, 3, older(path, 20), adopts=True)
    asked.require_free(lambda step: step % 20 == 0, 80)
    assert train(asked, path, 40, 60, 80) == ["last.h5", "w.h5", "w.step40.h5", "w.step60.h5"]


def test_what_another_run_left_is_not_set_aside(path: Path) -> None:
    """With --overwrite its newest checkpoint is replaced, and never counts as one of this run."""
    checkpoint.write(str(path), content(90, "another"))
    assert train(files(path, adopts=True), path, 20) == ["w.h5"]
    assert train(files(path, adopts=True), path, 20, 40) == ["w.h5", "w.step20.h5"]


def test_a_run_that_was_killed_while_it_set_a_checkpoint_aside_goes_on(path: Path) -> None:
    train(files(path), path, 20)
    os.link(path, older(path, 20))
    run = files(path, resume=path)
    run.require_free(lambda step: step % 20 == 0, 60)
    assert train(run, path, 40) == ["w.h5", "w.step20.h5"]
    assert checkpoint.read_state(str(older(path, 20))).step == 20


def test_older_checkpoints_lie_beside_the_target_of_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    path.symlink_to("scratch/w.h5")
    assert train(files(path), path, 20, 40) == ["scratch", "w.h5"]
    assert checkpoint.read_state(str(tmp_path / "scratch/w.step20.h5")).step == 20
