"""Published runs on many devices: measured and predicted times, with the prediction's interval.

Usage: python -m bench.gallery.large

The rows are papers' (``large.csv``, in the columns of ``scaling.csv``, with a parallel efficiency
and the devices that it is relative to), and the runs of ``runs.csv`` and ``scaling.csv`` on `LEAST`
devices and more. Nothing is fitted to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.gallery.exchange import framework_of
from bench.gallery.prediction import case, unpredictable
from bench.gallery.rows import Row, runs
from bench.gallery.series import series
from hpcpar.cost.trust import Trust
from hpcpar.prediction.price import price

PAPERS = Path(__file__).with_suffix(".csv")
#: Fewest devices of a large run.
LEAST = 128


@dataclass(frozen=True)
class Large:
    """A published time, or parallel efficiency, and its prediction.

    Attributes
    ----------
    predicted_s, fewest_s : float
        Predicted times of an iteration, and of one on the devices that an efficiency is relative
        to (else 0).
    """

    row: Row
    predicted_s: float
    trust: Trust
    fewest_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Predicted over measured time, or efficiency."""
        if self.fewest_s:
            return self.fewest_s / self.predicted_s / float(self.row.efficiency)
        return self.predicted_s / self.row.iteration_s

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the prediction's interval."""
        low_s, high_s = self.trust.interval_s(self.predicted_s)
        return low_s <= self.row.iteration_s <= high_s

    @property
    def group(self) -> str:
        """Its source, and the compared figure."""
        if self.fewest_s:
            return "papers: efficiency"
        if PAPERS.stem in self.row.id:
            return "papers: time"
        return "MLPerf HPC: time" if "hpc_results" in self.row.source else "MLPerf training: time"

    def line(self) -> str:
        """A row of the table."""
        row, (low_s, high_s) = self.row, self.trust.interval_s(self.predicted_s)
        note = row.note if PAPERS.stem in row.id else row.note.split(";")[0]
        what = (f"{row.network} | {row.device} | {int(row.devices):,} | {row.batch:g} | "
                f"{row.precision} | {framework_of(row) or 'hpcpar'}")
        if self.fewest_s:
            figures = (f"{100 * float(row.efficiency):.0f}% of {row.than} | "
                       f"{100 * self.fewest_s / self.predicted_s:.0f}% | {self.ratio:.2f} | - | -")
        else:
            figures = (f"{1e3 * row.iteration_s:.0f} ms | {1e3 * self.predicted_s:.0f} ms | "
                       f"{self.ratio:.2f} | {1e3 * low_s:.0f} to {1e3 * high_s:.0f} ms | "
                       f"{'yes' if self.inside else 'no'}")
        return f"| {what} | {figures} | {row.source}: {note} |"


def rows() -> Iterator[Row]:
    """All rows: of the papers, then of ``scaling.csv`` and ``runs.csv``."""
    every = [*series(PAPERS),
             *(row for row in (*series(), *runs()) if int(row.devices) >= LEAST)]
    yield from (row for row in every if not unpredictable(row))


def predicted(row: Row) -> Large:
    """A row with its prediction."""
    found = price(*case(row))
    assert found.trust is not None
    made = Large(row, found.iteration_s, found.trust)
    if not row.cells.get("efficiency"):
        return made
    fewer = replace(row, cells=row.cells | {"devices": row.than})
    return replace(made, fewest_s=price(*case(fewer)).iteration_s)


def summary(some: Sequence[Large]) -> list[str]:
    """Accuracy by group, of the rows on `LEAST` devices and more."""
    some = [each for each in some if int(each.row.devices) >= LEAST]
    out = [f"| {LEAST} devices and more | rows | accuracy | median ratio | within 20% | inside |",
           "| --- | --- | --- | --- | --- | --- |"]
    times = [each for each in some if not each.fewest_s]
    groups = {"all times": times}
    for each in some:
        groups.setdefault(each.group, []).append(each)
    for name, own in groups.items():
        ratios = np.array([each.ratio for each in own])
        off = np.abs(ratios - 1)
        inside = "-" if own[0].fewest_s else f"{sum(each.inside for each in own)} of {len(own)}"
        out.append(f"| {name} | {len(own)} | {100 * np.mean(1 - np.minimum(off, 1)):.0f}% | "
                   f"{np.median(ratios):.2f} | {100 * np.mean(off <= 0.2):.0f}% | {inside} |")
    return [*out, ""]


def lines(some: Sequence[Large]) -> list[str]:
    """The section of the page."""
    return ["## Large runs", "",
            "Published runs on many devices, right or wrong: papers (`large.csv`; times are those",
            "of a whole training run over its iterations, with input, evaluation and warmup),",
            "MLPerf training, and MLPerf HPC (with input and staging). Nothing is fitted to them.",
            "The rules are those of `--framework`; the interval is the prediction's own. An",
            "efficiency is a device's rate here over its rate on fewer devices, without interval.",
            "",
            *summary(some),
            "| network | device | devices | batch | format | rules | measured | predicted | "
            "ratio | 90% interval | inside | source |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *(each.line() for each in some), ""]


def main() -> None:
    """Prints the section."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print("\n".join(lines(list(map(predicted, rows())))))


if __name__ == "__main__":
    main()
