"""The best plan of a network, or a named strategy's, with its prediction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcpar.api.checks import argument, positive
from hpcpar.api.options import PlanningOptions
from hpcpar.api.results import Record, TableResult, prediction_record
from hpcpar.api.sources import machine_of, network_of
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.cost.price_plan import Prediction
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report import prediction_bars, tables
from hpcpar.schedule.runnable import runs
from hpcpar.schedule.steps import Schedule
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.table_search import SearchResult

if TYPE_CHECKING:
    from hpcpar.api.sources import MachineLike, NetworkLike

#: Plans in a table or a picture.
SHOWN = 8


@dataclass(frozen=True, repr=False)
class PlanResult(TableResult):
    """Priced plans of one network on one machine.

    Attributes
    ----------
    candidates : tuple of Candidate
        The choice, then the alternatives, the best first.
    search : SearchResult or None
        What the layer-wise search found, where it was asked for.
    search_s : float
        Time that planning took.
    """

    candidates: tuple[Candidate, ...]
    search: SearchResult | None
    search_s: float

    @property
    def best(self) -> Candidate:
        """The choice."""
        return self.candidates[0]

    @property
    def plan(self) -> Plan:
        """The plan of the choice."""
        return self.best.plan

    @property
    def prediction(self) -> Prediction:
        """The price of the choice."""
        return self.best.prediction

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """The other plans that were priced."""
        return self.candidates[1:]

    @cached_property
    def schedule(self) -> Schedule:
        """Every step of an iteration."""
        return schedule_for(self.best.task.network, self.plan)

    @cached_property
    def explanation(self) -> Explanation:
        """Why the plan takes its time, and what would help."""
        return explain(self.best.task.network, self.best)

    def save(self, path: str) -> None:
        """Writes the plan file, which ``hpcpar run`` takes.

        Raises
        ------
        InputError
            The file cannot be written, or the network cannot be loaded again by its name.
        """
        plans.save(self.plan, path)

    def to_json(self, schedule: bool = False) -> dict[str, Any]:
        """The document of ``hpcpar plan --json``; `schedule` is that of ``--show-schedule``."""
        data = self.prediction.to_json(steps=True) | {"search_s": self.search_s}
        if self.search is not None:
            data["search"] = self.search.to_json()
        data["alternatives"] = [
            {"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits}
            for c in self.alternatives]
        if schedule:
            data["schedule"] = tables.schedule_rows(self.schedule, self.prediction)
        return data

    def records(self) -> Sequence[Record]:
        """The price of every plan."""
        return [prediction_record(c.prediction) for c in self.candidates]

    def plot(self, path: str | None = None) -> Any:
        """Draws the best plans as bars, into a file where a path is given; returns the figure."""
        return prediction_bars.bars([c.prediction for c in self.candidates[:SHOWN]], {}, path)

    def __repr__(self) -> str:
        p = self.prediction
        of = f", best of {len(self.candidates)} plans" if self.alternatives else ""
        return (f"{p.network} on {p.ranks} ranks of {p.machine}, batch {p.batch}: {p.strategy}{of}"
                f"\n{tables.seconds(p.iteration_s)} an iteration, "
                f"{tables.amount(p.memory_bytes)} a rank"
                f"{'' if p.fits else ', which does not fit'}")


def plan(network: NetworkLike, ranks: int, batch: int, machine: MachineLike = "local",
         strategy: str = "auto", *, input: Shape | str | None = None, classes: int | None = None,
         **options: Any) -> PlanResult:
    """Finds the best plan, or prices a named strategy's.

    Parameters
    ----------
    network : str or Network
        A name, ``module:function``, the path of an ONNX file, or a network.
    batch : int
        Samples of a mini-batch, over all ranks.
    machine : str or Machine
        A preset's name, the path of a machine file, or a machine.
    strategy : str
        ``auto`` (the fastest that fits, of all that this version can run), ``layerwise``, or a name
        as in ``hpcpar plan --help``.
    input : tuple of int or str, optional
        Shape of an image, (C, H, W) or ``CxHxW``; by default the network's usual one.
    options
        Those of `hpcpar.api.options.PlanningOptions`.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    ranks, batch = argument("ranks", positive, ranks), argument("batch", positive, batch)
    spec, net = network_of(network, input, classes)
    chosen = PlanningOptions.of(options).planning(spec)
    where = machine_of(machine)
    begin = time.perf_counter()
    candidates, search = _candidates(net, spec, strategy, ranks, batch, where, **chosen)
    return PlanResult(tuple(candidates), search, time.perf_counter() - begin)


def _candidates(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> tuple[list[Candidate], SearchResult | None]:
    """The candidates, the best first, and the result of a layer-wise search that was asked for."""
    if strategy not in ("auto", "layerwise"):
        return [auto.price_named(network, spec, strategy, ranks, batch, machine, **options)], None
    layerwise = strategy == "layerwise"
    found = auto.best(network, spec, ranks, batch, machine, accept=runs(network),
                      layers=not layerwise, **options)
    if not layerwise:
        return found, None
    best, result = auto.named_or_layerwise(network, spec, ranks, batch, machine, known=found,
                                           **options)
    return [best, *found], result
