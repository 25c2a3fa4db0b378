"""90% intervals of predictions without calibration, from what published runs are off by.

Usage: python -m bench.gallery.intervals [--write]

It reads ``residuals.csv`` (`bench.gallery.residuals` writes it), prints the classes of runs, and
for each device and network the share of its rows that lie in the intervals of all others.
``--write`` writes ``hpcpar/cost/trust.toml``.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import tomli_w

from bench.fit_kernels import counted
from bench.gallery import cpus
from bench.gallery.prediction import graph
from bench.gallery.residuals import WITHOUT_RUNS, family, read, rows
from bench.gallery.rows import runs
from hpcpar.cost import trust
from hpcpar.cost.compute.kernel_model import CPU_SLOWDOWN
from hpcpar.cost.published_runs import (
    FITTED_VENDOR,
    ResidualClass,
    Residuals,
    kind_of,
    traits,
)
from hpcpar.machine import catalog

FILE = Path(trust.__file__).with_suffix(".toml")
#: Column of the residuals behind each basis, and what its coverage leaves out.
BASES = {"tables": ("network", "network"), "sheet": ("device", "device"),
         "others": ("device", "device"), "rate": ("rate", "device"), "peak": ("peak", "device")}
#: Fewest rows, and families of devices, of a class.
LEAST_ROWS, LEAST_FAMILIES = 20, 2
#: A narrower class has at least one end that differs by this much from the wider one's.
MATERIAL = 0.02
#: Percentiles of 90% intervals. Most rows come from a few devices, whose rows lie less often in the
#: intervals of all others.
PERCENTILES = (3, 50, 97)
#: Devices of runs that are called large.
MANY = 128


@dataclass(frozen=True)
class Residual:
    """Logarithm of predicted over measured time of a row, by one basis; kernels have no devices."""

    basis: str
    device: str
    network: str
    known: dict[str, str]
    log: float
    devices: int = 0

    @property
    def size(self) -> str:
        """The number of devices in words."""
        return ("kernels" if not self.devices else "one device" if self.devices == 1
                else "2 to 127 devices" if self.devices < MANY else f"{MANY} devices and more")

    def group(self, by: str) -> str:
        """Its device's family, or its network."""
        return family(self.device) if by == "device" else self.network


def others() -> list[str]:
    """Devices of other makers than the model of kernels is fitted to."""
    return [name for name in catalog.names()
            if catalog.device(name).vendor.lower() != FITTED_VENDOR]


def residuals() -> Iterator[Residual]:
    """The residuals of all rows, by each basis that they have."""
    logs, foreign = read(), others()
    for row in rows():
        known = traits(graph(row.graph_name, row.input), row.batch, row.precision)
        for basis, (column, _) in BASES.items():
            if column in logs[row.id] and (row.device in foreign) == (basis == "others"):
                yield Residual(basis, row.device, row.graph_name, known, logs[row.id][column],
                               int(row.devices))
    for id_, own in logs.items():
        for device in WITHOUT_RUNS:
            if id_.startswith(f"conv-{device}-"):
                yield Residual("others", device, "", {"precision": "fp32"}, own["device"])
    for row, log in cpus.logs():
        yield Residual("cpu", row.device, row.framework, {"precision": "fp32"}, log)


def percentiles(some: Sequence[Residual]) -> list[float]:
    """The `PERCENTILES` of measured over predicted times.

    Many rows of one network on one device count less each, by the root of their number.
    """
    many = Counter((r.device, r.network) for r in some)
    order = sorted(some, key=lambda r: -r.log)
    weights = np.array([many[r.device, r.network] ** -0.5 for r in order])
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    logs = np.interp(np.array(PERCENTILES) / 100, middles, [-r.log for r in order])
    return [float(f"{math.exp(log):.3g}") for log in logs]


def classes(every: Sequence[Residual]) -> list[ResidualClass]:
    """The classes, wider ones first; narrower ones where they differ and have enough rows."""
    found: list[ResidualClass] = []
    for basis in dict.fromkeys(r.basis for r in every):
        own = [r for r in every if r.basis == basis]
        wheres = {tuple(sorted({"precision": r.known["precision"], **dict(some)}.items()))
                  for r in own for some in _combinations(r.known)}
        for where in sorted(wheres, key=lambda each: (len(each), each)):
            some = [r for r in own if dict(where).items() <= r.known.items()]
            low, median, high = percentiles(some)
            made = ResidualClass(basis, dict(where), len(some), low, median, high)
            if _enough(some) and (len(where) == 1 or _differs(made, found)):
                found.append(made)
    return found


def unstated(found: Sequence[ResidualClass]) -> ResidualClass:
    """The class of a data sheet of an unknown kind: from the fastest GPU to the slowest CPU."""
    gpu, cpu = (Residuals(tuple(found)).of(basis, {"precision": "fp32"})
                for basis in ("others", "cpu"))
    return replace(gpu, basis="unstated", rows=gpu.rows + cpu.rows,
                   high=float(f"{cpu.high * CPU_SLOWDOWN:.3g}"))


def _combinations(known: dict[str, str]) -> Iterator[tuple[tuple[str, str], ...]]:
    free = [item for item in known.items() if item[0] != "precision" and item[1] != "images"]
    for count in range(len(free) + 1):
        yield from combinations(free, count)


def _enough(some: Sequence[Residual]) -> bool:
    families = {family(r.device) for r in some}
    return len(some) >= LEAST_ROWS and len(families) >= LEAST_FAMILIES


def _differs(made: ResidualClass, found: Sequence[ResidualClass]) -> bool:
    """Whether an end differs from the class that would be taken without this one."""
    wider = Residuals(tuple(found)).of(made.basis, made.where)
    return max(abs(math.log(made.low / wider.low)),
               abs(math.log(made.high / wider.high))) > MATERIAL


def inside(r: Residual, found: Sequence[ResidualClass]) -> bool:
    """Whether the measured time lies in the interval."""
    own = Residuals(tuple(found)).of(r.basis, r.known)
    return own.low <= math.exp(-r.log) <= own.high


def covered(every: Sequence[Residual], basis: str) -> list[tuple[Residual, bool]]:
    """Rows of a basis, and whether each lies in the interval that rows of other devices (of other
    networks) give.
    """
    by = BASES[basis][1]
    own = [r for r in every if r.basis == basis]
    out = []
    for left in sorted({r.group(by) for r in own}):
        found = classes([r for r in every if r.group(by) != left])
        out += [(r, inside(r, found)) for r in own if r.group(by) == left]
    return out


def coverage(found: Iterable[tuple[Residual, bool]], of: Callable[[Residual], str]
             ) -> dict[str, tuple[int, float]]:
    """Rows and the share inside, by group and of all."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for r, is_inside in found:
        groups["all"].append(is_inside)
        groups[of(r)].append(is_inside)
    return {name: (len(each), sum(each) / len(each)) for name, each in groups.items()}


def class_lines(found: Sequence[ResidualClass]) -> list[str]:
    """The table of classes."""
    return [f"| predictions from | runs | rows | {PERCENTILES[0]}% | median | {PERCENTILES[2]}% |",
            "| --- | --- | --- | --- | --- | --- |",
            *(f"| {c.basis} | {', '.join(f'{k} {v}' for k, v in c.where.items())} | {c.rows} | "
              f"{c.low:.2f} | {c.median:.2f} | {c.high:.2f} |" for c in found), ""]


def coverage_lines(every: Sequence[Residual], basis: str) -> list[str]:
    """The table of one basis: all rows, each format, number of devices and group that is left out.
    """
    by, found = BASES[basis][1], covered(every, basis)
    out: list[str] = []
    kinds: list[Callable[[Residual], str]] = [lambda r: r.known["precision"], lambda r: r.size,
                                              lambda r: r.group(by)]
    for of in kinds:
        shares = sorted(coverage(found, of).items(), key=lambda x: (x[0] != "all", x))
        out += [f"| {name or 'kernels'} | {count} | {100 * share:.0f}% |"
                for name, (count, share) in shares[bool(out):]]
    return [f"| {basis}: {by} left out | rows | inside |", "| --- | --- | --- |", *out, ""]


def lines() -> list[str]:
    """The section of the page."""
    every = list(residuals())
    return ["## 90% intervals", "",
            "Measured over predicted times, by what a prediction rests on (`python -m",
            "bench.gallery.intervals`): `tables`, a device with published runs (the network left",
            "out of the fit); `sheet`, a data sheet alone (the device left out); `others`, one",
            "of another maker (DeepBench's convolutions); `cpu`, a CPU's (`bench.gallery.cpus`);",
            "`rate`, one rate of the papers' presets; `peak`, a data sheet's peak as rate.", "",
            *class_lines(classes(every)),
            "Rows in the intervals that the other networks' or devices' rows give:", "",
            *coverage_lines(every, "tables"), *coverage_lines(every, "sheet")]


def write(every: Sequence[Residual]) -> None:
    """Writes the file of the package."""
    families = {family(row.device) for row in filter(counted, runs())}
    every_row, found = rows(), classes(every)
    data = {"most_ranks": max(int(row.devices) for row in every_row),
            "kinds": Counter(kind_of(graph(row.graph_name, row.input)) for row in every_row),
            "devices": [name for name in catalog.names() if family(name) in families],
            "classes": [asdict(each) for each in (*found, unstated(found))]}
    head = ("# Measured over predicted times of published runs, by class; trust.py explains them.\n"
            "# Written by: python -m bench.gallery.intervals --write\n")
    FILE.write_text(head + tomli_w.dumps(data), encoding="utf-8")


def main() -> None:
    """Prints classes and coverage, and writes them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    every = list(residuals())
    print("\n".join(class_lines(classes(every))))
    for basis in BASES:
        print("\n".join(coverage_lines(every, basis)))
    if args.write:
        write(every)


if __name__ == "__main__":
    main()
