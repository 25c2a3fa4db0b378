"""Losses of several devices: measured and predicted parallel efficiency of published series.

Usage: python -m bench.gallery.scaling [--without] [--leave machine|framework]

A pair is a run on several devices and one on a single device with the same source, network, batch
per device, format, framework and data; its efficiency is the ratio of their times. The page's table
compares it with the prediction and with the best constant. ``--without`` also predicts with each
mechanism left out in turn. ``--leave`` chooses the three numbers that are fitted (spread of the
devices, what computing hides, what links reach) anew for every machine, or framework, from all
others' pairs; it prices one rank that stands for all.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import product
from unittest import mock

import numpy as np
from scipy.stats import spearmanr  # type: ignore[import-untyped]

from bench.gallery import prediction
from bench.gallery.exchange import framework_of
from bench.gallery.prediction import Result, case, predict, unpredictable
from bench.gallery.rows import Row, runs
from bench.gallery.series import series
from hpcpar.cost.compute import step_time
from hpcpar.cost.price_family import laid_out, price_steps
from hpcpar.machine.model import Machine
from hpcpar.plan import frameworks
from hpcpar.schedule.steps import Comm

#: Cells that the rows of a pair share.
SAME = ("source", "network", "input", "device", "framework", "precision", "batch_per_device",
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


def _same(row: Row) -> tuple[str, ...]:
    return tuple(row.cells[name] for name in SAME)


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
        measured = np.array([pair.measured for pair in some])
        predicted = np.array([pair.predicted for pair in some])
        constant = np.abs(measured - np.median(measured)).mean()
        found = spearmanr(measured, predicted).statistic if len(some) > 2 else np.nan
        return cls(len(some), float(found), float(np.abs(predicted - measured).mean()),
                   float((predicted - measured).mean()), float(constant))

    def line(self, label: str) -> str:
        """A row of the table."""
        return (f"| {label} | {self.count} | {self.correlation:.2f} | {100 * self.error:.1f}% | "
                f"{100 * self.bias:+.1f}% | {100 * self.constant:.1f}% | "
                f"{self.error / self.constant:.2f} |")


def table(some: list[Pair]) -> list[str]:
    """All pairs, and groups of them."""
    groups: dict[str, Callable[[Pair], bool]] = {
        "all": lambda pair: True, "measured above 0.7": lambda pair: pair.measured > 0.7,
        "synthetic data": lambda pair: pair.many.row.data == "synthetic",
        "real data": lambda pair: pair.many.row.data == "real",
        "16 devices and more": lambda pair: int(pair.many.row.devices) >= 16}
    for name in ("ddp", "horovod", "mirrored", "replicated"):
        groups[name] = lambda pair, name=name: name in _framework(pair)  # type: ignore[misc]
    out = ["| pairs | number | rank correlation | mean error | mean | best constant | error / "
           "constant |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for label, of in groups.items():
        own = [pair for pair in some if of(pair)]
        if len(own) >= 10:
            out.append(Judgment.of(own).line(label))
    return [*out, ""]


def _framework(pair: Pair) -> str:
    words = pair.many.row.sync.lower()
    return "".join(name for name in ("ddp", "horovod", "mirrored", "replicated") if name in words)


def without() -> Iterator[tuple[str, list[Pair]]]:
    """The pairs as predicted with each mechanism left out in turn."""
    found = rows()
    plain = {name: replace(rules, updates_at_end=False, cycle_s=0.0, overlap="full")
             for name, rules in frameworks.FRAMEWORKS.items()}
    whole = prediction.machine_of

    def changed(change: Callable[[Machine], Machine]) -> Callable[[Row], Machine]:
        return lambda row: change(whole(row))

    def hides(machine: Machine) -> Machine:
        return replace(machine, overlap=1.0)

    def sheets(machine: Machine) -> Machine:
        return replace(machine, levels=tuple(
            replace(level, reached=1.0) for level in machine.levels))

    changes: dict[str, AbstractContextManager[object]] = {
        "the frameworks' rules": mock.patch.dict(frameworks.FRAMEWORKS, plain),
        "interference": mock.patch.object(prediction, "machine_of", changed(hides)),
        "what links reach": mock.patch.object(prediction, "machine_of", changed(sheets)),
        "the slowest device": mock.patch.object(step_time, "SPREAD", 0.0),
    }
    for label, patch in changes.items():
        with patch:
            yield label, list(pairs(map(predict, found)))


#: Values among which ``--leave`` chooses: `SPREAD`, `Machine.overlap`, `Level.reached`.
VALUES = tuple(product((0.016, 0.025, 0.035, 0.045), (1.0, 0.85, 0.7, 0.55), (1.0, 0.75, 0.55)))


def leave(by: Callable[[Row], str]) -> list[Pair]:
    """The pairs, each predicted with the values that suit all other groups' pairs best."""
    found = rows()
    of_values = np.array([list(_with_values(row)) for row in found])
    results = [[Result(row, float(s)) for row, s in zip(found, seconds, strict=True)]
               for seconds in of_values.T]
    every = [list(pairs(some)) for some in results]
    errors = np.array([[abs(pair.predicted - pair.measured) for pair in some] for some in every])
    groups = np.array([by(pair.many.row) for pair in every[0]])
    best = {group: int(errors[:, groups != group].mean(axis=1).argmin()) for group in set(groups)}
    print("chosen:", {VALUES[i] for i in best.values()})
    return [every[best[group]][i] for i, group in enumerate(groups)]


def _with_values(row: Row) -> Iterator[float]:
    """Predicted seconds of a row for each of `VALUES`."""
    network, plan, machine = case(row)
    priced = {}
    for reached in {value[2] for value in VALUES}:
        levels = tuple(replace(level, reached=reached if level.reached < 1 else 1.0)
                       for level in machine.levels)
        with mock.patch.object(step_time, "SPREAD", 0.0):
            priced[reached] = price_steps(network, plan, replace(machine, levels=levels))
    for spread, overlap, reached in VALUES:
        with mock.patch.object(step_time, "SPREAD", spread):
            factor = step_time.slowest(machine.device, plan.ranks)
        steps = priced[reached].schedule.steps
        factors = [1.0 if isinstance(step, Comm) else factor for step in steps]
        prices = [price._replace(seconds=times * price.seconds)
                  for times, price in zip(factors, priced[reached].prices, strict=True)]
        line = laid_out(replace(machine, overlap=overlap), plan, steps, prices)
        yield float(line.total_s)


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
    """Prints the table, and those without each mechanism."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--leave", choices=("machine", "framework"))
    args = parser.parse_args()
    if args.leave:
        groups = {"machine": lambda row: row.machine + row.source, "framework": framework_of}
        print("\n".join(table(leave(groups[args.leave]))))
        return
    print("\n".join(table(list(pairs(map(predict, rows()))))))
    for label, some in without() if args.without else ():
        print(Judgment.of(some).line(f"without {label}"))


if __name__ == "__main__":
    main()
