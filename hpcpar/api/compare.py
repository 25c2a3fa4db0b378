"""Runs compared with their predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.api.results import Record, TableResult
from hpcpar.errors import InputError
from hpcpar.report import compare as comparison
from hpcpar.report.calls import calls_of
from hpcpar.report.pictures import calls_plot, compare_plot
from hpcpar.report.rows import Row
from hpcpar.report.tables.answer import of_comparison
from hpcpar.report.tables.compare_table import csv_rows
from hpcpar.train.record_file import load
from hpcpar.train.run_record import RunRecord


@dataclass(frozen=True, repr=False)
class CompareResult(TableResult):
    """Predicted and measured times of runs, in the order given."""

    columns = ("file", "network", "strategy", "ranks", "predicted_s", "measured_s", "accuracy")
    runs: tuple[Row, ...]

    @property
    def answer(self) -> str:
        """The accuracy in one sentence."""
        return of_comparison(self.runs, self.mean_accuracy)

    @property
    def mean_accuracy(self) -> float | None:
        """Mean accuracy of the iteration, 0 to 1, as ParaDL defines it."""
        return comparison.mean_accuracy(self.runs)

    def to_json(self, calls: bool = False) -> dict[str, Any]:
        """The document of ``hpcpar compare --json``, with ``--calls``."""
        document = comparison.to_json(self.runs)
        for run, row in zip(document["runs"], self.runs, strict=True) if calls else ():
            run["calls"] = [each.to_json() for each in calls_of(row.record)[0]]
        return document

    def rows(self, calls: bool = False) -> list[Record]:
        """Every time of every run, as ``hpcpar compare --csv``, with ``--calls``."""
        return list(csv_rows(self.runs)) + [
            {"file": row.file, "network": row.network, "strategy": row.strategy,
             "ranks": row.ranks, "of": "calls", "name": each.label, **each.times.to_json()}
            for row in self.runs if calls for each in calls_of(row.record)[0]]

    def _shown(self) -> list[Record]:
        return [row for row in self.rows() if row["of"] == "iteration"]

    def plot(self, path: str | None = None) -> Any:
        """Draws the comparison, into the file `path` if given; returns the figure."""
        return compare_plot.plot(self.runs, path)

    def plot_calls(self, path: str | None = None) -> Any:
        """Draws every call of a run over the size of its messages, as `plot` does.

        Raises
        ------
        InputError
            Several runs are compared.
        """
        if len(self.runs) > 1:
            raise InputError("the calls of several runs do not fit one picture; give one record")
        row = self.runs[0]
        title = f"{row.network}, {row.strategy} on {row.ranks} ranks: calls of communication steps"
        return calls_plot.calls_figure(calls_of(row.record)[0], title, path)


def compare(*records: str | RunRecord, allow_external: bool = False) -> CompareResult:
    """Compares runs, given as record files or records, with their predictions.

    Parameters
    ----------
    allow_external : bool
        Read HDF5 files that keep data in other files.

    Raises
    ------
    InputError
        No record is given, or one cannot be read.
    """
    if not records:
        raise InputError("no record to compare; give files from hpcpar run --out")
    files = load(*(r for r in records if isinstance(r, str)), allow_external=allow_external)
    loaded = [files.pop(0) if isinstance(r, str) else r for r in records]
    return CompareResult(tuple(comparison.compare(loaded)))
