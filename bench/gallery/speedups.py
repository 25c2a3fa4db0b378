"""Speedups: how the time changes with the number of devices, each device keeping its batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.gallery.prediction import Result

#: Cells that the rows of a family share, beside the exchange of gradients.
FAMILY = ("source", "network", "input", "device", "machine", "framework", "precision",
          "batch_per_device", "data", "note")


@dataclass(frozen=True)
class Speedup:
    """A row of a family against the row of the fewest devices."""

    first: Result
    result: Result

    def _of(self, first_s: float, seconds: float) -> float:
        more = int(self.result.row.devices) / int(self.first.row.devices)
        return more * first_s / seconds

    @property
    def predicted(self) -> float:
        """Samples per second, as a multiple of the first row's."""
        return self._of(self.first.predicted_s, self.result.predicted_s)

    @property
    def measured(self) -> float:
        """Samples per second, as a multiple of the first row's."""
        return self._of(self.first.row.iteration_s, self.result.row.iteration_s)

    @property
    def ratio(self) -> float:
        """Predicted over measured speedup."""
        return self.predicted / self.measured


def speedups(results: list[Result]) -> Iterator[Speedup]:
    """Each row against the smallest of its family; rows of one device have no exchange."""
    families: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda r: int(r.row.devices)):
        families[tuple(result.row.cells[name] for name in FAMILY)].append(result)
    for family in families.values():
        for result in family:
            first = next(r for r in family if r.row.sync in (result.row.sync, "none"))
            if int(first.row.devices) < int(result.row.devices):
                yield Speedup(first, result)


def _line(label: str, some: list[Speedup]) -> str:
    ratios = np.array([s.ratio for s in some])
    off = np.abs(ratios - 1)
    return (f"| {label} | {len(some)} | {100 * off.mean():.1f}% | {np.median(ratios):.2f} | "
            f"{100 * np.mean(off <= 0.1):.0f}% | {100 * off.max():.0f}% |")


def table(some: list[Speedup]) -> list[str]:
    """A row for each machine."""
    machines = sorted({s.result.row.machine for s in some})
    return ["| machine | speedups | mean error | median ratio | within 10% | largest error |",
            "| --- | --- | --- | --- | --- | --- |", _line("all", some),
            *(_line(name, [s for s in some if s.result.row.machine == name]) for name in machines),
            ""]


def worst(some: list[Speedup], count: int = 5) -> list[str]:
    """The speedups that are furthest off."""
    out = ["| predicted | measured | devices | network | machine | batch | exchange | framework |",
           "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for each in sorted(some, key=lambda s: -abs(np.log(s.ratio)))[:count]:
        row = each.result.row
        out.append(f"| {each.predicted:.2f} | {each.measured:.2f} | {each.first.row.devices} to "
                   f"{row.devices} | {row.network} | {row.machine} | {row.batch:g} | {row.sync} | "
                   f"{row.framework} |")
    return [*out, ""]
