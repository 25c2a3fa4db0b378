"""The best plan of a network, or a named strategy's, with its prediction."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcpar.api import checks
from hpcpar.api.checks import argument, jitters
from hpcpar.api.options import PlanningOptions
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import MachineLike, NetworkLike, machine_of, network_of
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report import answer, prediction_bars
from hpcpar.report.prediction_tables import schedule_rows
from hpcpar.report.progress import SearchProgress
from hpcpar.schedule.steps import Schedule
from hpcpar.search import auto
from hpcpar.search.candidates import SHOWN, Candidate
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.memory_advice import MemoryAdvice, advice_on
from hpcpar.search.robust import Robust, by_robustness
from hpcpar.search.table_search import SearchResult
from hpcpar.simulation.noise import jitter_on
from hpcpar.simulation.price_plan import Prediction
from hpcpar.simulation.simulate import require_size


@dataclass(frozen=True, repr=False)
class PlanResult(TableResult):
    """Priced plans of one network on one machine.

    Attributes
    ----------
    candidates : tuple of Candidate
        The choice, then its alternatives, the best first.
    search : SearchResult or None
        The outcome of the layer-wise search, where that was asked for.
    search_s : float
        Time that planning took.
    epochs : float
        Length of the training.
    robust : tuple of Robust
        The candidates about as fast as the fastest, the choice first, where robustness was asked
        for.
    """

    candidates: tuple[Candidate, ...]
    search: SearchResult | None
    search_s: float
    epochs: float = 1.0
    robust: tuple[Robust, ...] = ()

    @property
    def answer(self) -> str:
        """The plan to take, in one sentence."""
        return answer.of_plan(self.prediction, self.epochs, choice=len(self.candidates) > 1)

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

    @cached_property
    def schedule(self) -> Schedule:
        """Every step of an iteration."""
        return schedule_for(self.best.task.network, self.plan)

    @cached_property
    def advice(self) -> MemoryAdvice | None:
        """How the choice was made to fit in memory, or could be."""
        return advice_on(list(self.candidates))

    @cached_property
    def explanation(self) -> Explanation:
        """Limits of the choice, and the changes that would help most."""
        return explain(self.best.task.network, self.best)

    def save(self, path: str, force: bool = False) -> None:
        """Writes the plan file.

        Raises
        ------
        InputError
            The file cannot be written, no name stands for the network, or the plan does not fit in
            memory and `force` is False.
        """
        if not (force or self.best.fits):
            raise InputError(f"{path} is not written: {self.best.strategy} does not fit in memory; "
                             "plan otherwise, or give --force")
        plans.save(self.plan, path)

    def to_json(self, schedule: bool = False, explained: bool = False) -> dict[str, Any]:
        """The document of ``hpcpar plan --json``, with ``--show-schedule``, with ``--explain``."""
        data = self.prediction.to_json(steps=True) | {"search_s": self.search_s}
        if self.search is not None:
            data["search"] = self.search.to_json()
        data["alternatives"] = [
            {"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits}
            for c in self.candidates[1:]]
        if self.robust:
            data["robust"] = [{"strategy": c.strategy, "iteration_s": c.iteration_s,
                               "slow_s": slow_s} for c, slow_s in self.robust]
        if explained:
            data["explain"] = self.explanation.to_json()
        if schedule:
            data["schedule"] = schedule_rows(self.schedule, self.prediction)
        return data

    def rows(self) -> list[Record]:
        """The price of every plan, as ``hpcpar plan --csv``."""
        return flat([c.prediction.to_json() for c in self.candidates])

    def _shown(self) -> list[Record]:
        return flat([c.prediction.to_json() for c in self.candidates[:SHOWN]])

    def plot(self, path: str | None = None) -> Any:
        """Draws the best plans, into the file `path` if given; returns the figure."""
        return prediction_bars.bars([c.prediction for c in self.candidates[:SHOWN]], {}, path)


def plan(network: NetworkLike, ranks: int, batch: int, machine: MachineLike = "local",
         strategy: str = "auto", *, robust: float | str | None = None,
         input: Shape | str | None = None, classes: int | None = None, **options: Any
         ) -> PlanResult:
    """Finds the best plan, or prices a named strategy's.

    Arguments are the options of ``hpcpar plan``, by the same names and with the same defaults.

    Parameters
    ----------
    network : str or Network
        A name, ``module:function``, the path of an ONNX file, or a network.
    machine : str or Machine
        A preset's name, the path of a machine file, or a machine.
    robust : float or str, optional
        Jitter, as of `simulate`: among the plans within 2% of the fastest, take the one whose
        iterations have the least 95th percentile.
    options
        Those of `hpcpar.api.options.PlanningOptions`.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    ranks = argument("ranks", checks.ranks, ranks)
    batch = argument("batch", checks.positive, batch)
    spec, net = network_of(network, input, classes)
    chosen = PlanningOptions.of(options)
    where = chosen.on(machine_of(machine))
    jitter = None if robust is None else jitter_on(where, argument("robust", jitters, robust))
    if jitter is not None:
        require_size(ranks)
    begin = time.perf_counter()
    ranking: list[Robust] = []
    with SearchProgress() as progress:
        candidates, search = _candidates(net, spec, strategy, ranks, batch, where,
                                         tell=progress.tell, **chosen.planning(spec))
        if jitter is not None:
            ranking = by_robustness(candidates, jitter)
    near = [each.candidate for each in ranking]
    candidates = near + [c for c in candidates if c not in near]
    return PlanResult(tuple(candidates), search, time.perf_counter() - begin, chosen.epochs,
                      tuple(ranking))


def _candidates(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> tuple[list[Candidate], SearchResult | None]:
    """The candidates, the best first, and the result of a layer-wise search that was asked for."""
    if strategy not in ("auto", "layerwise"):
        return [auto.price_named(network, spec, strategy, ranks, batch, machine, **options)], None
    layerwise = strategy == "layerwise"
    found = auto.best(network, spec, ranks, batch, machine, layers=not layerwise,
                      **options)
    if not layerwise:
        return found, None
    best, result = auto.named_or_layerwise(network, spec, ranks, batch, machine, known=found,
                                           **options)
    return [best, *found], result
