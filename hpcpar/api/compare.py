"""Runs compared with their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcpar.api.results import Record, TableResult
from hpcpar.errors import InputError
from hpcpar.report import compare as comparison
from hpcpar.report import compare_plot
from hpcpar.report.answer import of_comparison
from hpcpar.report.rows import Row
from hpcpar.train.record import RunRecord, read


@dataclass(frozen=True, repr=False)
class CompareResult(TableResult):
    """Predicted and measured times of runs, in the order given."""

    rows: tuple[Row, ...]

    @property
    def answer(self) -> str:
        """The accuracy in one sentence."""
        return of_comparison(self.rows, self.mean_accuracy)

    @property
    def mean_accuracy(self) -> float | None:
        """Mean accuracy of the iteration, 0 to 1, as ParaDL defines it."""
        return comparison.mean_accuracy(self.rows)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar compare --json``."""
        return comparison.to_json(self.rows)

    def records(self) -> Sequence[Record]:
        """One row a run."""
        return [{"run": row.file, "network": row.network, "strategy": row.strategy,
                 "ranks": row.ranks, "batch": row.record.plan["batch"],
                 "predicted_s": row.iteration.predicted_s, "measured_s": row.iteration.measured_s,
                 "accuracy": row.iteration.accuracy} for row in self.rows]

    def plot(self, path: str | None = None) -> Any:
        """Draws the comparison, into the file `path` if given; returns the figure."""
        return compare_plot.plot(self.rows, path)


def compare(*records: str | RunRecord) -> CompareResult:
    """Compares runs with their predictions; the arguments are record files, or records.

    Raises
    ------
    InputError
        There is no record, or one cannot be read.
    """
    if not records:
        raise InputError("no record to compare; give files that 'hpcpar run --out' wrote")
    loaded = [read(r) if isinstance(r, str) else r for r in records]
    return CompareResult(tuple(comparison.compare(loaded)))
