"""The numbers of a training for spreadsheets and dashboards: a CSV table of its epochs, and event
files of TensorBoard with every iteration.
"""

from __future__ import annotations

import csv
import os
from typing import Any

from hpcpar.errors import InputError
from hpcpar.train.loop import Progress

COLUMNS = ("epoch", "step", "loss", "train_accuracy", "test_accuracy", "test_loss", "iteration_s",
           "rate")


def row(now: Progress) -> dict[str, float | None]:
    """The numbers by name; None of those that were not measured, as before the end of an epoch."""
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
        As of `Progress`.
    first : int
        First step of this run: TensorBoard drops what an earlier one did from there on.

    Raises
    ------
    InputError
        The table has other columns, the folder cannot be written, or tensorboardX is missing.
    """

    def __init__(self, table: str, folder: str, pixel_classes: int, first: int) -> None:
        self._table, self._events = table, _events(folder, first) if folder else None
        blank = Progress(0, 0, 0, 0, 0.0, 0.0, pixel_classes=pixel_classes)
        if table and os.path.exists(table) and os.path.getsize(table):
            with open(table, newline="", encoding="utf-8") as f:
                if next(csv.reader(f)) != [*row(blank)]:
                    raise InputError(f"{table} has other columns than this training would append: "
                                     "choose another name")

    def add(self, now: Progress) -> None:
        """Call after every iteration."""
        found = row(now)
        if self._events is not None:
            for name in found.keys() - {"epoch", "step"}:
                if found[name] is not None:
                    self._events.add_scalar(name, found[name], now.step)
        if self._table and now.epoch_done:
            begins = not os.path.exists(self._table) or not os.path.getsize(self._table)
            with open(self._table, "a", newline="", encoding="utf-8") as f:
                rows = csv.DictWriter(f, [*found], lineterminator="\n")
                if begins:
                    rows.writeheader()
                rows.writerow(found)

    def close(self) -> None:
        """Writes what is left."""
        if self._events is not None:
            self._events.close()


def _events(folder: str, first: int) -> Any:
    """A writer of event files."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as err:
        raise InputError(
            "--tensorboard needs tensorboardX: pip install hpcpar[tensorboard]") from err
    try:
        return SummaryWriter(folder, purge_step=first)
    except OSError as err:
        raise InputError(f"--tensorboard {folder}: cannot write there ({err.strerror}); name "
                         "another folder") from err
