"""Efficiencies predicted for machines and frameworks that no number was fitted to, and what each
mechanism is worth: ``scaling_left_out.csv``.

Usage: python -m bench.gallery.scaling_left_out

Three numbers are fitted to the pairs of `bench.gallery.scaling`: the spread of the devices, what
computing hides, what links reach. The command chooses them anew for every machine, and for every
framework, from all others' pairs. It also leaves out each mechanism in turn. One rank stands for
all, so that "nothing" left out differs a little from the page's first table. Four minutes.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeAlias
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from bench.gallery import scaling
from bench.gallery.exchange import framework_of
from bench.gallery.prediction import Result, case
from bench.gallery.rows import Row
from bench.gallery.scaling import Judgment, Pair
from hpcpar.cost.compute.step_time import SPREAD, slowest
from hpcpar.cost.price_family import laid_out, price_steps
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import frameworks
from hpcpar.plan.plan import Plan
from hpcpar.schedule.steps import Comm

FILE = Path(__file__).with_suffix(".csv")
Numbers: TypeAlias = NDArray[np.float64]


class Values(NamedTuple):
    """Values of `SPREAD`, `Machine.overlap` and `Level.reached`; every combination counts."""

    spread: tuple[float, ...]
    overlap: tuple[float, ...]
    reached: tuple[float, ...]


#: The values in use.
IN_USE = Values((SPREAD,), (0.85,), (0.75,))
#: The values to choose from.
CHOICES = Values((0.0, 0.016, 0.025, SPREAD, 0.045), (1.0, 0.85, 0.7, 0.55), (1.0, 0.75, 0.55))
#: Values without a mechanism.
WITHOUT = {"interference": IN_USE._replace(overlap=(1.0,)),
           "what links reach": IN_USE._replace(reached=(1.0,)),
           "the slowest device": IN_USE._replace(spread=(0.0,))}
#: Groups that are left out, by the row on several devices.
GROUPS: dict[str, Callable[[Row], str]] = {
    "machine": lambda row: row.machine + scaling.source_of(row), "framework": framework_of}


def seconds(network: Network, plan: Plan, machine: Machine, values: Values) -> Numbers:
    """[spread, overlap, reached] predicted time of an iteration; one rank stands for all."""
    out = np.empty([len(each) for each in values])
    # what the slowest device adds for each unit of the spread
    added = (slowest(machine.device, plan.ranks) - 1.0) / SPREAD
    factors = (1 + added * np.array(values.spread)) / (1 + added * SPREAD)
    for k, reached in enumerate(values.reached):
        levels = tuple(replace(level, reached=reached) if level.reached in IN_USE.reached else level
                       for level in machine.levels)
        priced = price_steps(network, plan, replace(machine, levels=levels))
        prices = [price if isinstance(step, Comm) else
                  price._replace(seconds=factors * price.seconds) for step, price in priced.pairs]
        for j, overlap in enumerate(values.overlap):
            changed = replace(machine, overlap=overlap)
            out[:, j, k] = laid_out(changed, plan, priced.schedule.steps, prices).total_s
    return out


def efficiencies(some: Sequence[Pair], values: Values) -> Numbers:
    """[pairs, spread, overlap, reached] predicted efficiencies; equal cases are priced once."""
    known: dict[tuple[Network, Plan, Machine], Numbers] = {}

    def of(row: Row) -> Numbers:
        key = case(row)
        if key not in known:  # one device has no losses
            known[key] = seconds(*key, values if key[1].ranks > 1 else IN_USE)
        return known[key]

    return np.array([of(pair.one.row) / of(pair.many.row) for pair in some])


def left_out(groups: Sequence[str], predicted: Numbers, measured: Numbers) -> Judgment:
    """The judgment of pairs whose values suit all other groups' pairs best, as does the constant.

    `predicted` is [pairs, values].
    """
    errors = np.abs(predicted - measured[:, None])
    names = np.array(groups)
    chosen, constants = np.empty(len(names)), np.empty(len(names))
    for name in set(groups):
        own = names == name
        chosen[own] = predicted[own, errors[~own].mean(axis=0).argmin()]
        constants[own] = np.median(measured[~own])
    return Judgment.between(chosen, measured, constants)


def judgments() -> Iterator[tuple[str, Judgment]]:
    """Judgments with each thing left out, by its name."""
    some = list(scaling.pairs(Result(row, np.nan) for row in scaling.rows()))
    measured = np.array([pair.measured for pair in some])
    predicted = efficiencies(some, CHOICES).reshape(len(some), -1)
    every = [Values(*((value,) for value in each)) for each in product(*CHOICES)]

    def of(values: Values) -> Numbers:
        return predicted.T[every.index(values)]

    yield "nothing", Judgment.between(of(IN_USE), measured)
    for name, group in GROUPS.items():
        groups = [group(pair.many.row) for pair in some]
        yield f"each {name}", left_out(groups, predicted, measured)
    for label, values in WITHOUT.items():
        yield label, Judgment.between(of(values), measured)
    plain = {name: replace(rules, updates_at_end=False, cycle_s=0.0, overlap="full")
             for name, rules in frameworks.FRAMEWORKS.items()}
    with mock.patch.dict(frameworks.FRAMEWORKS, plain):
        without = efficiencies(some, IN_USE)
    yield "the frameworks' rules", Judgment.between(without.ravel(), measured)


def write(found: Sequence[tuple[str, Judgment]], path: Path = FILE) -> None:
    """Writes the file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        names = ["left_out", *(field.name for field in fields(Judgment))]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for label, judged in found:
            figures = {name: f"{figure:.4g}" for name, figure in asdict(judged).items()}
            writer.writerow({"left_out": label, **figures})


def read(path: Path = FILE) -> list[tuple[str, Judgment]]:
    """The judgments in the file, by name."""
    with path.open(encoding="utf-8") as file:
        return [(cells.pop("left_out"), Judgment(int(cells.pop("count")), **{
            name: float(figure) for name, figure in cells.items()}))
            for cells in csv.DictReader(file)]


def lines() -> list[str]:
    """The tables of the page."""
    found = read()
    return ["With a machine, or a framework, left out, its pairs take the three fitted numbers",
            "(spread of the devices, what computing hides, what links reach) that suit all other",
            "pairs best, and their median as constant. With a mechanism left out, the others keep",
            "their values. One rank stands for all (`python -m bench.gallery.scaling_left_out`).",
            "",
            *scaling.titles("left out"), *(judged.line(label) for label, judged in found), ""]


def main() -> None:
    """Prints the table and writes the file."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    found = list(judgments())
    write(found)
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
