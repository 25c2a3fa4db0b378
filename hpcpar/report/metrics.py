"""A CSV file with a row for each epoch of a training, for spreadsheets and dashboards."""

from __future__ import annotations

import csv
import os

from hpcpar.train.loop import Progress

COLUMNS = ("epoch", "step", "loss", "train_accuracy", "test_accuracy", "test_loss", "iteration_s")


class MetricsFile:
    """Appends a row at the end of every epoch; without a path it writes nothing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, now: Progress) -> None:
        """Call after every iteration; what was not measured stays empty."""
        if not self._path or not now.epoch_done:
            return
        begins = not os.path.exists(self._path) or not os.path.getsize(self._path)
        with open(self._path, "a", newline="", encoding="utf-8") as f:
            rows = csv.writer(f, lineterminator="\n")
            if begins:
                rows.writerow(COLUMNS)
            rows.writerow(["" if (value := getattr(now, name)) is None else value
                           for name in COLUMNS])
