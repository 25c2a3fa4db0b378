"""The cases: where, which network, how many ranks, which strategy; and what became of each."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bench.unseen.jobs import SCRIPT, output
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Level, Machine
from hpcpar.network.builtin import NETWORKS
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report.rows import Times
from hpcpar.report.tables import amount
from hpcpar.search import auto
from tests.strategies import named

#: Network -> image, batch. A network's smallest layers still have pixels for four ranks.
SIZES = {"lenet5": ((1, 28, 28), 64), "alexnet": ((3, 99, 99), 16), "vgg16": ((3, 64, 64), 8),
         "resnet50": ((3, 64, 64), 16)}
#: Strategies for AlexNet's own layer sizes on links that are slow for them: the case of one weird
#: trick.
WIRE = ("data", "owt", "auto")
#: Links of the shaped networks (Mbit/s).
FAST, SLOW = 1000, 100
#: Part of the free memory that plans may take on all ranks together.
MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class Place:
    """Where ranks run; without links' rate in the memory of one host."""

    mbit: int = 0

    @property
    def name(self) -> str:
        return f"{self.mbit} Mbit/s" if self.mbit else "memory"

    def rough(self) -> Machine:
        """The machine that a first estimate of times assumes."""
        machine = files.load("local")
        return replace(machine,
                       levels=(Level("network", 0, 1e-4, 8e-6 / self.mbit),
                               )) if self.mbit else machine

    def sent_bytes(self, ranks: int) -> int:
        """Bytes that all hosts have sent so far, as their interfaces count them."""
        return sum(int(output(str(SCRIPT), "bytes", str(host))) for host in range(1, ranks + 1))


@dataclass(frozen=True)
class Group:
    """The cases of a network on a number of ranks: they share a calibration."""

    place: Place
    network: str
    image: tuple[int, ...]
    batch: int
    ranks: int
    strategies: tuple[str, ...]

    @property
    def name(self) -> str:
        image = "x".join(map(str, self.image))
        return f"{self.place.name} {self.network} {image} b{self.batch} p{self.ranks}".replace(
            "/", "").replace(" ", "-")

    def id(self, strategy: str) -> str:
        return f"{self.name}-{strategy}"

    @property
    def spec(self) -> NetworkSpec:
        return NetworkSpec(self.network, self.image, NETWORKS[self.network][2])


@dataclass
class CaseRun:
    """A case in one job: predicted from the job's calibration, and run interleaved with it.

    Attributes
    ----------
    predicted_s, known_s : float
        Without and with the compute steps of the case's own plan.
    table_part : float
        Part of the unseen prediction's computing that the calibrated table covers.
    causes, known_causes : dict
        Measured less predicted (s) by cause (`hpcpar.report.rows.Term`), of both predictions.
    wire_ratio : float or None
        Bytes that the interfaces sent over the schedule's.
    shares_cores : bool
        The job had more ranks than cores.
    inside, known_inside : bool or None
        The measured time lies in the 90% interval of either prediction.
    simulated_s : float or None
        `hpcpar simulate`'s time, without the compute steps of the case's own plan.
    """

    measured_s: float
    predicted_s: float
    known_s: float
    table_part: float
    causes: dict[str, float]
    known_causes: dict[str, float]
    iterations: int
    wire_ratio: float | None
    load: float
    date: str
    shares_cores: bool = False
    inside: bool | None = None
    known_inside: bool | None = None
    simulated_s: float | None = None


def accuracy(predicted_s: float, measured_s: float) -> float:
    """ParaDL's."""
    found = Times(measured_s, predicted_s).accuracy
    assert found is not None, "a run takes time"
    return found


@dataclass
class Result:
    """The result of a case; `note` says why it was not run.

    Attributes
    ----------
    plan : str
        The strategy that `auto` took; it was not run a second time where it is one of the others.
    runs : list of CaseRun
        One for each job.
    """

    place: str
    network: str
    image: tuple[int, ...]
    batch: int
    ranks: int
    strategy: str
    note: str = ""
    plan: str = ""
    runs: list[CaseRun] = field(default_factory=list)

    def median(self, what: Callable[[CaseRun], float]) -> float:
        """Over the jobs."""
        return statistics.median(what(run) for run in self.runs)

    @property
    def measured_s(self) -> float:
        return self.median(lambda run: run.measured_s)

    @property
    def predicted_s(self) -> float:
        """A job's prediction belongs to its measurement, from the same minutes: the median of
        their ratios counts.
        """
        return self.measured_s * self.median(lambda run: run.predicted_s / run.measured_s)

    @property
    def known_s(self) -> float:
        """As `predicted_s`, with the steps of the case's own plan."""
        return self.measured_s * self.median(lambda run: run.known_s / run.measured_s)

    @property
    def simulated_s(self) -> float | None:
        """As `predicted_s`, simulated."""
        found = [run.simulated_s / run.measured_s for run in self.runs if run.simulated_s]
        return self.measured_s * statistics.median(found) if found else None

    @property
    def wire_ratio(self) -> float | None:
        found = [run.wire_ratio for run in self.runs if run.wire_ratio]
        return statistics.median(found) if found else None

    @property
    def shares_cores(self) -> bool:
        """True for more ranks than cores."""
        return any(run.shares_cores for run in self.runs)

    @property
    def accuracy(self) -> float:
        return accuracy(self.predicted_s, self.measured_s)

    @property
    def known_accuracy(self) -> float:
        return accuracy(self.known_s, self.measured_s)

    @property
    def single(self) -> list[float]:
        """The accuracy of each job alone, without the steps of the case's own plan."""
        return [accuracy(run.predicted_s, run.measured_s) for run in self.runs]

    def cause_s(self, known: bool, cause: str) -> float:
        """Measured less predicted (s) by this cause."""
        return self.median(lambda run: (run.known_causes if known
                                         else run.causes).get(cause, 0.0))

    @classmethod
    def load(cls, row: dict[str, Any]) -> Result:
        """From plain data."""
        return cls(**(row | {"image": tuple(row["image"]),
                             "runs": [CaseRun(**run) for run in row["runs"]]}))


def groups(options: argparse.Namespace) -> list[Group]:
    """Everything that was asked for."""
    chosen, ranks = options.networks.split(","), [int(p) for p in options.ranks.split(",")]

    def group(place: Place, name: str, p: int) -> Group:
        # on one rank all strategies are the same
        every = (*named(p), "auto") if p > 1 else ("data",)
        return Group(place, name, *SIZES[name], p, tuple(options.strategies.split(","))
                     if options.strategies and p > 1 else every)

    out = [group(Place(), name, p) for p in ranks
           for name in chosen] if options.network != "shaped" else []
    if options.network != "memory":
        # more ranks, or faster links between this many, are bound by the cores; on slow links only
        # networks with few weights
        places = [(Place(FAST if p <= 4 else SLOW), p) for p in ranks if p > 1]
        out += [group(place, name, p) for place, p in places for name in chosen if name == "lenet5"
                or place.mbit == FAST]
        wire = tuple(s for s in WIRE if not options.strategies
                     or s in options.strategies.split(","))
        if "alexnet" in chosen and wire:
            out += [Group(place, "alexnet", (3, 227, 227), 16, p, wire) for place, p in places
                    if place.mbit == FAST]
    return out


def free_bytes() -> float:
    """Memory that plans may take on all ranks together."""
    return MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def possible(group: Group, network: Network, machine: Machine, strategy: str, batch: int) -> Plan:
    """The plan of a strategy.

    Raises
    ------
    InputError
        It cannot be run here.
    """
    where = (network, group.spec, group.ranks, batch, machine)
    if strategy == "auto":
        found = auto.best(*where, bucket_bytes=None)[0]
    else:
        found = auto.price_named(network, group.spec, strategy, *where[2:], bucket_bytes=None)
    if found.memory_bytes * group.ranks > free_bytes():
        raise InputError(f"needs {amount(found.memory_bytes)} on each rank, "
                         f"{amount(free_bytes())} are free for all")
    return found.plan
