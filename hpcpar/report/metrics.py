"""Training metrics: a CSV table of epochs, and TensorBoard event files of all iterations."""

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
    """Metrics by name; None for one that is not measured, as before the end of an epoch."""
    values = {name: getattr(now, name) for name in COLUMNS}
    if now.loss_scale is not None:
        values["loss_scale"] = now.loss_scale
    for part in ("train", "test") if now.pixel_classes else ():
        pixels = getattr(now, f"{part}_pixels")
        for what in ("dice", "iou"):
            values[f"{part}_{what}"] = getattr(pixels, f"mean_{what}", None)
            by_class = getattr(pixels, what, [None] * now.pixel_classes)
            values |= {f"{part}_{what}_{i}": value for i, value in enumerate(by_class)}
    return values


class Metrics:
    """Writes training metrics to a table and to event files; an empty name writes neither.

    Parameters
    ----------
    table : str
        CSV file that gets a row at the end of every epoch.
    folder : str
        Folder for event files of TensorBoard.
    pixel_classes : int
        See `Progress`.
    first : int
        First step of this run; TensorBoard hides points of earlier runs from this step on.
    scaled : bool
        The training has a loss scale.

    Raises
    ------
    InputError
        The table has other columns, the folder cannot be written, or tensorboardX is missing.
    """

    def __init__(self, table: str = "", folder: str = "", pixel_classes: int = 0,
                 first: int = 1, scaled: bool = False) -> None:
        blank = Progress(0, 0, 0, 0, 0.0, 0.0, pixel_classes=pixel_classes,
                         loss_scale=0.0 if scaled else None)
        self._table = table
        try:
            writer = _event_writer() if folder else None
            if table:
                _begin(table, [*row(blank)])
            self._events = None if writer is None else writer(folder, purge_step=first)
        except OSError as err:
            raise InputError(f"cannot write {err.filename} ({err.strerror}); choose another "
                             "name") from err

    def add(self, now: Progress) -> None:
        """Adds an iteration; call it after each."""
        values = row(now)
        if self._events is not None:
            for name in values.keys() - {"epoch", "step"}:
                if values[name] is not None:
                    self._events.add_scalar(name, values[name], now.step)
        if self._table and now.epoch_done:
            with open(self._table, "a", newline="", encoding="utf-8") as f:
                csv.writer(f, lineterminator="\n").writerow(values.values())

    def close(self) -> None:
        """Flushes and closes the event files."""
        if self._events is not None:
            self._events.close()


def _begin(table: str, columns: Sequence[str]) -> None:
    """Checks the columns of a table, or writes them into an empty one."""
    header = ",".join(columns).encode() + b"\n"
    with open(table, "a+b") as f:
        f.seek(0)
        existing = f.readline(len(header) + 1)
        if not existing:
            f.write(header)
            return
        if existing.rstrip(b"\r\n") != header.rstrip(b"\n"):
            raise InputError(f"{table} has other columns than this training writes: choose another "
                             "name")
        f.seek(-1, os.SEEK_END)
        if f.read() != b"\n":  # a job ended within a row
            f.write(b"\n")


def _event_writer() -> Any:
    """The class that writes event files."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as err:
        raise InputError(
            "--tensorboard needs tensorboardX: pip install hpcpar[tensorboard]") from err
    return SummaryWriter
