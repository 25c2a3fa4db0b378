"""The numbers of a training for spreadsheets and dashboards: a CSV table of its epochs, and event
files of TensorBoard with every iteration.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.train.loop import Progress

COLUMNS = ("epoch", "step", "loss", "train_accuracy", "test_accuracy", "test_loss", "iteration_s",
           "rate")


def row(now: Progress) -> dict[str, float | None]:
    """The numbers by name; None where one was not measured, as before the end of an epoch."""
    found = {name: getattr(now, name) for name in COLUMNS}
    for part in ("train", "test") if now.pixel_classes else ():
        pixels = getattr(now, f"{part}_pixels")
        for what in ("dice", "iou"):
            found[f"{part}_{what}"] = getattr(pixels, f"mean_{what}", None)
            each = getattr(pixels, what, [None] * now.pixel_classes)
            found |= {f"{part}_{what}_{i}": value for i, value in enumerate(each)}
    return found


class Metrics:
    """Writes the numbers of a training to a table and to event files, where these are named.

    Parameters
    ----------
    table : str
        CSV file, to which a row is appended at the end of every epoch.
    folder : str
        Folder for event files of TensorBoard.
    pixel_classes : int
        See `Progress`.
    first : int
        First step of this run: TensorBoard hides an earlier run's points from there on.

    Raises
    ------
    InputError
        The table has other columns, the folder cannot be written, or tensorboardX is missing.
    """

    def __init__(self, table: str = "", folder: str = "", pixel_classes: int = 0,
                 first: int = 1) -> None:
        blank = Progress(0, 0, 0, 0, 0.0, 0.0, pixel_classes=pixel_classes)
        self._table = table
        try:
            writer = _event_writer() if folder else None
            if table:
                _begin(table, [*row(blank)])
            self._events = None if writer is None else writer(folder, purge_step=first)
        except OSError as err:
            raise InputError(f"{err.filename}: cannot write there ({err.strerror}); choose another "
                             "name") from err

    def add(self, now: Progress) -> None:
        """Call after every iteration."""
        found = row(now)
        if self._events is not None:
            for name in found.keys() - {"epoch", "step"}:
                if found[name] is not None:
                    self._events.add_scalar(name, found[name], now.step)
        if self._table and now.epoch_done:
            with open(self._table, "a", newline="", encoding="utf-8") as f:
                csv.writer(f, lineterminator="\n").writerow(found.values())

    def close(self) -> None:
        """Writes what is left."""
        if self._events is not None:
            self._events.close()


def _begin(table: str, columns: Sequence[str]) -> None:
    """Checks the columns of a table; one without any gets them."""
    header = ",".join(columns).encode() + b"\n"
    with open(table, "a+b") as f:
        f.seek(0)
        there = f.readline(len(header) + 1)
        if not there:
            f.write(header)
            return
        if there.rstrip(b"\r\n") != header.rstrip(b"\n"):
            raise InputError(f"{table} has other columns than this training would append: choose "
                             "another name")
        f.seek(-1, os.SEEK_END)
        if f.read() != b"\n":  # a job was ended within a row
            f.write(b"\n")


def _event_writer() -> Any:
    """The class that writes event files."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as err:
        raise InputError(
            "--tensorboard needs tensorboardX: pip install hpcpar[tensorboard]") from err
    return SummaryWriter
