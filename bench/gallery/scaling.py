"""Losses of several devices: measured and predicted parallel efficiency of published series.

Usage: python -m bench.gallery.scaling

A pair is a run on several devices and one on a single device with the same source, network, batch
per device, format, framework and data; its efficiency is the ratio of their times. The page's table
compares it with the prediction and with the best constant. `bench.gallery.scaling_left_out` says
what these predictions are worth for machines and frameworks that they were not fitted to.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from bench.gallery.prediction import Result, predict, unpredictable
from bench.gallery.rows import Row, runs
from bench.gallery.series import series

#: Cells that the rows of a pair share, beside their source.
SAME = ("network", "input", "device", "framework", "precision", "batch_per_device",
        "data", "forward_ms")
#: Efficiencies out of these bounds are failed runs, or input that the note does not name.
BOUNDS = 0.3, 1.1


@dataclass(frozen=True)
class Pair:
    """A run on several devices against one on a single device."""

    one: Result
    many: Result

    @property
    def measured(self) -> float:
        """Measured parallel efficiency."""
        return self.one.row.iteration_s / self.many.row.iteration_s

    @property
    def predicted(self) -> float:
        """Predicted parallel efficiency."""
        return self.one.predicted_s / self.many.predicted_s

    @property
    def framework(self) -> str:
        """The first words of its exchange."""
        return self.many.row.sync.split(",")[0]


def rows() -> list[Row]:
    """All rows that can be predicted, without doubtful ones and devices that share a sample."""
    every = [*runs(), *series()]
    return [row for row in every if row.batch >= 1 and not row.doubt and not unpredictable(row)]


def pairs(results: Iterable[Result]) -> Iterator[Pair]:
    """The pairs; among several rows of one device, the one with the same note and exchange."""
    ones: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    several = []
    for result in results:
        if result.row.devices == "1":
            ones[_same(result.row)].append(result)
        else:
            several.append(result)
    for many in several:
        fitting = ones[_same(many.row)]
        if fitting:
            pair = Pair(max(fitting, key=lambda one: _likeness(one.row, many.row)), many)
            if BOUNDS[0] <= pair.measured <= BOUNDS[1]:
                yield pair


def source_of(row: Row) -> str:
    """Its source, without the number of devices in a file's name (4xQuadro_RTX_6000.logs)."""
    return re.sub(r"\d+x", "", row.source)


def _same(row: Row) -> tuple[str, ...]:
    return (source_of(row), *(row.cells[name] for name in SAME))


def _likeness(one: Row, many: Row) -> tuple[bool, ...]:
    return (one.cells.get("series") == many.cells.get("series"), one.note == many.note,
            one.sync == many.sync)


@dataclass(frozen=True)
class Judgment:
    """How right predicted efficiencies are.

    Attributes
    ----------
    correlation : float
        Rank correlation (Spearman) of predicted and measured efficiency.
    error, constant : float
        Mean difference of the efficiencies; `constant` is the same for the best constant.
    """

    count: int
    correlation: float
    error: float
    bias: float
    constant: float

    @classmethod
    def of(cls, some: list[Pair]) -> Judgment:
        """The judgment of some pairs."""
        return cls.between([pair.predicted for pair in some], [pair.measured for pair in some])

    @classmethod
    def between(cls, predicted: ArrayLike, measured: ArrayLike,
                constants: ArrayLike | None = None) -> Judgment:
        """The judgment of efficiencies; `constants` take the place of the best constant."""
        off = np.subtract(predicted, measured)
        if constants is None:
            constants = np.median(np.asarray(measured))
        found = spearmanr(measured, predicted).statistic if len(off) > 2 else np.nan
        return cls(len(off), float(found), float(np.abs(off).mean()), float(off.mean()),
                   float(np.abs(np.subtract(measured, constants)).mean()))

    def line(self, label: str) -> str:
        """A row of the table."""
        return (f"| {label} | {self.count} | {self.correlation:.2f} | {100 * self.error:.1f}% | "
                f"{100 * self.bias:+.1f}% | {100 * self.constant:.1f}% | "
                f"{self.error / self.constant:.2f} |")


def titles(first: str) -> list[str]:
    """The head of a table of judgments."""
    return [f"| {first} | number | rank correlation | mean error | mean | best constant | error / "
            "constant |", "| --- | --- | --- | --- | --- | --- | --- |"]


def table(some: list[Pair]) -> list[str]:
    """All pairs, and groups of them."""
    groups: dict[str, Callable[[Pair], bool]] = {
        "all": lambda pair: True, "measured above 0.7": lambda pair: pair.measured > 0.7,
        "synthetic data": lambda pair: pair.many.row.data == "synthetic",
        "real data": lambda pair: pair.many.row.data == "real",
        "16 devices and more": lambda pair: int(pair.many.row.devices) >= 16}
    for name in ("ddp", "horovod", "mirrored", "replicated"):
        groups[name] = lambda pair, name=name: name in _framework(pair)  # type: ignore[misc]
    out = titles("pairs")
    for label, of in groups.items():
        own = [pair for pair in some if of(pair)]
        if len(own) >= 10:
            out.append(Judgment.of(own).line(label))
    return [*out, ""]


def _framework(pair: Pair) -> str:
    words = pair.many.row.sync.lower()
    return "".join(name for name in ("ddp", "horovod", "mirrored", "replicated") if name in words)


def curves(some: list[Pair], count: int = 10) -> list[list[Pair]]:
    """The longest series of each of `count` machines, by number of devices."""
    found: dict[tuple[str, ...], dict[int, Pair]] = defaultdict(dict)
    for pair in some:
        row = pair.many.row
        key = (*_same(row), row.machine, row.sync)
        found[key].setdefault(int(row.devices), pair)
    of_machine: dict[str, list[Pair]] = {}
    for sizes in sorted(found.values(), key=len, reverse=True):
        first = sizes[min(sizes)].many.row
        of_machine.setdefault(f"{first.device} {first.machine}",
                              [sizes[size] for size in sorted(sizes)])
    return list(of_machine.values())[:count]


def lines(some: list[Pair], image: str) -> list[str]:
    """The section of the page."""
    return ["## Parallel efficiency", "",
            f"![Measured and predicted efficiency of ten series]({image})", "",
            f"{len(some)} pairs of a run on several devices and one on a single device, with the",
            "same source, network, batch per device, format, framework and data",
            "(`runs.csv` and `scaling.csv`). Efficiency is the ratio of their times. The constant",
            "is the median of what was measured.", "", *table(some)]


def main() -> None:
    """Prints the table."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print("\n".join(table(list(pairs(map(predict, rows()))))))


if __name__ == "__main__":
    main()
