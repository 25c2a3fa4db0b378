"""Prices of strategies on numbers of ranks, and the choice of a number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from hpcpar.api.checks import (
    amount,
    argument,
    fraction,
    names,
    optional,
    positive,
    several_ranks,
    share,
)
from hpcpar.api.options import PlanningOptions
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import (
    MachineLike,
    NetworkLike,
    machine_of,
    machine_of_plan,
    network_of,
)
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report import answer, perfetto, prediction_bars, timeline_plot
from hpcpar.report.progress import SearchProgress
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate, alone
from hpcpar.search.explain import Explanation
from hpcpar.search.explain import explain as limitations
from hpcpar.search.scaling import Scale, best_ranks, scaling, weak_batch
from hpcpar.simulation.price_plan import Prediction, price

#: Default numbers of ranks to choose from.
USUAL_RANKS = [2**i for i in range(11)]


@dataclass(frozen=True, repr=False)
class PredictResult(TableResult):
    """Prices of plans.

    Attributes
    ----------
    candidates : tuple of Candidate
        The priced strategies; empty for a given plan.
    skipped : tuple of dict
        Strategies that a number of ranks cannot follow, and the reason.
    explanations : tuple of Explanation
        What limits each candidate, where that was asked for.
    scales : tuple of Scale
        Efficiency and cost of each candidate, where a condition was given.
    choice : Scale or None
        The one that meets the conditions.
    epochs : float
        Length of the training.
    """

    predictions: tuple[Prediction, ...]
    candidates: tuple[Candidate, ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    explanations: tuple[Explanation, ...] = ()
    scales: tuple[Scale, ...] = ()
    choice: Scale | None = None
    epochs: float = 1.0

    @property
    def answer(self) -> str:
        """The choice, or the fastest that fits, in one sentence."""
        if not self.predictions:
            return "Every strategy was skipped: use a larger batch or fewer ranks"
        if self.scales:
            return answer.of_scaling(self.choice, self.epochs)
        return answer.of_predictions(self.predictions, self.epochs)

    @property
    def best(self) -> Candidate | None:
        """The choice, or the fastest for a sample that fits; None for a plan file."""
        if self.choice is not None:
            return self.choice.candidate
        return min(self.candidates, default=None,
                   key=lambda c: (not c.fits, c.iteration_s / c.task.batch))

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar predict --json``."""
        single = len(self.predictions) == 1 and not self.skipped
        documents: list[dict[str, Any]] = [p.to_json(steps=single) for p in self.predictions]
        for data, explanation in zip(documents, self.explanations, strict=False):
            data["explain"] = explanation.to_json()
        document: dict[str, Any] = {"predictions": documents, "skipped": list(self.skipped)}
        if single and not self.scales:
            document = documents[0]
        if self.scales:
            document |= {"scaling": [s.to_json() for s in self.scales],
                         "choice": self.choice.to_json() if self.choice else None}
        return document

    def rows(self) -> list[Record]:
        """The price of every plan, with its efficiency and cost where a condition was given."""
        costs = [s.to_json() for s in self.scales] or [{}] * len(self.predictions)
        return flat([p.to_json() | cost for p, cost in zip(self.predictions, costs, strict=True)])

    def plot(self, path: str | None = None) -> Any:
        """Draws the predictions, into the file `path` if given; returns the figure."""
        tasks = {c.task.ranks: c.task for c in self.candidates if c.task.ranks <= c.task.batch}
        data = {ranks: alone(task, "data").prediction for ranks, task in tasks.items()}
        return prediction_bars.bars(self.predictions, data, path)

    def plot_timeline(self, path: str | None = None) -> Any:
        """Draws the simulated timelines, as `plot` does."""
        return timeline_plot.timelines(self.predictions, path)

    def save_timeline(self, path: str) -> None:
        """Writes the simulated timelines for ui.perfetto.dev or chrome://tracing."""
        perfetto.save(self.predictions, path)


def predict(network: NetworkLike | None = None, ranks: int | str | Iterable[int] | None = None,
            batch: int | None = None, machine: MachineLike | None = None,
            strategy: str | Iterable[str] = "data", *, plan: str | Plan | PlanResult | None = None,
            batch_per_rank: float | Fraction | str | None = None, input: Shape | str | None = None,
            classes: int | None = None, forward_only: bool = False, explain: bool = False,
            efficiency: float | None = None, deadline: float | None = None,
            node_hours: float | None = None, **options: Any) -> PredictResult:
    """Prices strategies on numbers of ranks, or a plan.

    Arguments are the options of ``hpcpar predict``, by the same names and with the same defaults.

    Parameters
    ----------
    network, machine
        As in `hpcpar.plan`.
    ranks, strategy
        One, several, or text with commas.
    batch_per_rank : int, float, Fraction or str, optional
        Below 1 where ranks share a sample, as in ``1/4``.
    plan : str, Plan or PlanResult, optional
        A plan file or a plan, instead of network, ranks, batch and strategy.
    deadline : float, optional
        Hours.
    options
        Those of `hpcpar.api.options.PlanningOptions`.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    chosen = PlanningOptions.of(options)
    hours = optional("deadline", amount, deadline)
    conditions = {"efficiency": optional("efficiency", fraction, efficiency),
                  "deadline_s": None if hours is None else 3600 * hours,
                  "node_hours": optional("node_hours", amount, node_hours)}
    if plan is not None:
        _refuse("--plan and {} exclude each other: the plan file fixes it", network=network,
                input=input, classes=classes, ranks=ranks, batch=batch,
                batch_per_rank=batch_per_rank, gather=chosen.gather, overlap=chosen.overlap)
        _refuse("{} compares strategies and ranks: give --network, --ranks and --batch, not --plan",
                efficiency=efficiency, deadline=deadline, node_hours=node_hours,
                explain=explain or None)
        priced = _price_plan(plan, machine, chosen, training=not forward_only)
        return PredictResult((priced,), epochs=chosen.epochs)
    asked = any(value is not None for value in conditions.values())
    ranks = USUAL_RANKS if ranks is None and asked else ranks
    if network is None or ranks is None:
        missing = "network" if network is None else "ranks"
        raise InputError(
            f"--{missing} is missing; give --network, --ranks and --batch, or --plan plan.json")
    if (batch is None) == (batch_per_rank is None):
        raise InputError("give --batch (over all ranks) or --batch-per-rank, one of the two")
    strategies = names(strategy)
    if not strategies:
        raise InputError("--strategy names none; leave it out, or give some, as in auto,data")
    whole = optional("batch", positive, batch)
    each = whole or argument("batch_per_rank", share, batch_per_rank)
    sizes = {p: whole or weak_batch(each, p) for p in argument("ranks", several_ranks, ranks)}
    spec, net = network_of(network, input, classes)
    with SearchProgress() as progress:
        candidates, skipped = _price(
            net, spec, sizes, strategies, chosen.on(machine_of(machine or "local")),
            tell=progress.tell, training=not forward_only, **chosen.planning(spec))
    scales = _scales(candidates, math.ceil(each), chosen.epochs) if asked else []
    return PredictResult(
        tuple(c.prediction for c in candidates), tuple(candidates), tuple(skipped),
        tuple(limitations(net, c) for c in candidates) if explain else (), tuple(scales),
        best_ranks(scales, **conditions), chosen.epochs)


def _refuse(message: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(message.format(f"--{name.replace('_', '-')}"))


def _scales(candidates: list[Candidate], batch: int, epochs: float) -> list[Scale]:
    """Efficiency and cost of every candidate.

    Parameters
    ----------
    batch : int
        Mini-batch of the one rank that efficiencies refer to; in weak scaling, a rank's share.
    """
    if not candidates:
        raise InputError("nothing to choose from: every strategy was skipped on every number of "
                         "ranks; use a larger batch or fewer ranks")
    task = candidates[0].task
    serial_s = alone(replace(task, ranks=1, batch=batch), "data").iteration_s / batch
    return scaling(candidates, task.samples or 0, epochs, serial_s)


def _price_plan(given: str | Plan | PlanResult, machine: MachineLike | None,
                chosen: PlanningOptions, training: bool) -> Prediction:
    where = f"plan file {given}" if isinstance(given, str) else "the plan"
    if isinstance(given, PlanResult):
        given = given.plan
    plan = plans.load(given) if isinstance(given, str) else given
    on = machine_of_plan(plan, where) if machine is None else machine_of(machine)
    return price(plan.network.build(), plan, chosen.on(on),
                 samples=chosen.epoch_samples(plan.network), accounting=chosen.accounting,
                 training=training, **chosen.pricing)


def _price(network: Network, spec: NetworkSpec, sizes: Mapping[int, int],
           strategies: Iterable[str], machine: Machine,
           **options: Any) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Every strategy on every number of ranks, and those that cannot be cut so.

    Parameters
    ----------
    sizes : mapping
        The mini-batch by number of ranks.
    """
    found: list[Candidate] = []
    skipped: list[dict[str, Any]] = []

    def one(strategy: str, ranks: int, batch: int) -> None:
        try:
            if strategy == "auto":
                found.append(auto.best(network, spec, ranks, batch, machine, **options)[0])
            else:
                found.append(auto.price_named(network, spec, strategy, ranks, batch, machine,
                                              **options))
        except InputError as err:
            skipped.append({"strategy": strategy, "ranks": ranks, "reason": str(err)})

    for ranks, batch in sizes.items():
        for pattern in strategies:
            for strategy in ["auto"] if pattern == "auto" else auto.expand(pattern, ranks):
                one(strategy, ranks, batch)
    if not found and len(skipped) == 1:
        raise InputError(skipped[0]["reason"])
    return found, skipped
