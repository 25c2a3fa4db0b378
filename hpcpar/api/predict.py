"""Prices of strategies for several numbers of ranks, and the choice of that number."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from hpcpar.api.keywords import by_keyword
from hpcpar.api.options import (
    NO_EPOCH,
    LossOptions,
    PlanFields,
    PlanningOptions,
    about_machine,
    about_network,
)
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult, flat
from hpcpar.api.sources import (
    MachineLike,
    NetworkLike,
    machine_of,
    network_of,
    plan_and_machine,
)
from hpcpar.cost.anchors import in_case
from hpcpar.cost.compute.priced_formats import require_priced
from hpcpar.cost.ratios import Ratio
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.options.checks import (
    amount,
    fraction,
    names,
    path,
    positive,
    several_of,
    several_ranks,
    share,
)
from hpcpar.options.fields import flag, option
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import plan_costs
from hpcpar.report.pictures import prediction_bars, timeline_plot
from hpcpar.report.progress import SearchProgress
from hpcpar.report.tables import answer
from hpcpar.report.tables.anchors import anchors_json, explained
from hpcpar.report.traces import perfetto
from hpcpar.schedule.steps import Phase
from hpcpar.search import auto
from hpcpar.search.anchoring import NeededTerm, fit, needed
from hpcpar.search.candidates import Candidate, price_plan, price_strategy
from hpcpar.search.choice import chosen, times_as_fast
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.scaling import Scale, best_ranks, scaling, weak_batch

#: Options that a plan fixes, except its number format, which `predict` may change.
FIXED = tuple(f.name for f in fields(PlanFields) if f.name != "precision")
#: Options of a plan that its alternatives keep.
KEPT = ("overlap", "collectives", "precision", "synchronization", "batch_norm", "optimizer",
        "framework")
#: Parts of the communication that ``columns`` shows, and their phases or None.
COLUMNS = {"latency": None, "bandwidth": None, "forward": Phase.FORWARD,
           "backward": Phase.BACKWARD, "gradients": Phase.GRADIENT}
columns_asked = partial(several_of, COLUMNS)
#: Default numbers of ranks to choose from.
USUAL_RANKS = [2**i for i in range(11)]


@dataclass(frozen=True, repr=False)
class PredictResult(TableResult):
    """Prices of plans.

    Attributes
    ----------
    candidates : tuple of Candidate
        The priced strategies, or the given plan.
    skipped : tuple of dict
        Strategies that cannot cut the network over a number of ranks, with the reason.
    explanations : tuple of Explanation
        The limits of each candidate, with ``explain``.
    scales : tuple of Scale
        Efficiency and cost of each candidate, if a condition was given.
    choice : Scale or None
        The candidate that meets the conditions.
    epochs : float
        Length of the training.
    why : tuple of NeededTerm
        Terms that would explain measured iterations, if nothing but these was asked about.
    columns_s : mapping
        Parts of the communication time that were asked for: name -> one value per prediction.
    """

    predictions: tuple[Prediction, ...]
    candidates: tuple[Candidate, ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()
    explanations: tuple[Explanation, ...] = ()
    scales: tuple[Scale, ...] = ()
    choice: Scale | None = None
    epochs: float = 1.0
    columns_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    why: tuple[NeededTerm, ...] = ()

    @property
    def answer(self) -> str:
        """The choice in one sentence."""
        best = self.best
        if best is None:
            return "Every strategy was skipped: use a larger batch or fewer ranks"
        if self.scales:
            return answer.of_scaling(self.choice, self.epochs)
        if self.why:
            return explained(self.why)
        use = answer.of_plan(best.prediction, self.epochs, choice=len(self.predictions) > 1)
        return (use + answer.beside(best, self.candidates)
                + answer.statistics(best.prediction, best.other_statistics_s))

    @cached_property
    def best(self) -> Candidate | None:
        """The choice that meets the conditions; without conditions, the simplest of those about as
        fast per sample as the fastest that fits. None if all were skipped.
        """
        if self.choice is not None:
            return self.choice.candidate
        return chosen(self.candidates) if self.candidates else None

    @cached_property
    def choices(self) -> dict[int, Candidate]:
        """The choice on each number of ranks."""
        groups: dict[int, list[Candidate]] = defaultdict(list)
        for c in self.candidates:
            groups[c.task.ranks].append(c)
        return {ranks: chosen(some) for ranks, some in groups.items()}

    @cached_property
    def ratios(self) -> tuple[Ratio | None, ...]:
        """Time per sample of each candidate, relative to the choice on its number of ranks, or on
        all if each number has one candidate; None for the choice. Measured cases have no choice.
        """
        if self.best is None or self.why:
            return (None,) * len(self.predictions)
        one_each = len(self.choices) == len(self.candidates)
        choices = dict.fromkeys(self.choices, self.best) if one_each else self.choices
        return tuple(None if c is choices[c.task.ranks] else
                     times_as_fast(choices[c.task.ranks], c) for c in self.candidates)

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar predict --json``."""
        single = len(self.predictions) == 1 and not self.skipped
        documents: list[dict[str, Any]] = [p.to_json(steps=single) for p in self.predictions]
        for data, parts in zip(documents, self._parts(), strict=True):
            data |= parts
        for data, ratio in zip(documents, self.ratios, strict=True):
            data |= ratio.to_json("ratio") if ratio else {}
        for data, explanation in zip(documents, self.explanations, strict=False):
            data["explain"] = explanation.to_json()
        document: dict[str, Any] = {"predictions": documents, "skipped": list(self.skipped)}
        if single and not self.scales:
            document = documents[0]
        if self.scales:
            document |= {"scaling": [s.to_json() for s in self.scales],
                         "choice": self.choice.to_json() if self.choice else None}
        if self.candidates:
            document |= anchors_json(self.candidates[0].task.machine.anchored, self.why)
        return document

    def rows(self) -> list[Record]:
        """The price of every plan, with its efficiency and cost if a condition was given."""
        costs = [s.to_json() for s in self.scales] or [{}] * len(self.predictions)
        return flat([p.to_json() | parts | cost for p, parts, cost in zip(
            self.predictions, self._parts(), costs, strict=True)])

    def _parts(self) -> list[dict[str, float]]:
        """The parts of the communication time of each prediction."""
        return [{f"{name}_s": values[i] for name, values in self.columns_s.items()}
                for i in range(len(self.predictions))]

    def plot(self, path: str | None = None) -> Any:
        """Draws the predictions, into the file `path` if given; returns the figure."""
        tasks = {c.task.ranks: c.task for c in self.candidates if c.task.ranks <= c.task.batch}
        data = {ranks: price_strategy(task, "data").prediction for ranks, task in tasks.items()}
        return prediction_bars.bars(self.predictions, data, path)

    def plot_timeline(self, path: str | None = None) -> Any:
        """Draws the simulated timelines, as `plot` does."""
        return timeline_plot.timelines(self.predictions, path)

    def save_timeline(self, path: str) -> None:
        """Writes the simulated timelines for ui.perfetto.dev or chrome://tracing."""
        perfetto.save(self.predictions, path)


@dataclass(frozen=True)
class StrategyArguments(PlanningOptions, LossOptions):
    """Strategies on numbers of ranks, for a network on a machine."""

    network: NetworkLike | None = field(default=None, metadata=about_network())
    ranks: int | str | Iterable[int] | None = option(
        None, several_ranks, "numbers of ranks (default with --efficiency, --deadline or "
        "--node-hours: 1,2,4,...,1024)", "P,P,...", first=True)
    batch: int | None = option(
        None, positive, "samples per mini-batch, over all ranks (strong scaling)", "B", first=True)
    machine: MachineLike | None = field(
        default=None, metadata=about_machine(
            "the plan's or the sweep's, else the site's, else local"))
    strategy: str | Iterable[str] = option(
        "data", path, "strategies; 'grid:*' means every grid, 'df:*x4' the one with 4 "
        "channel parts, 'auto' the choice of hpcpar plan", "S,S,...", first=True)
    _: KW_ONLY
    batch_per_rank: float | Fraction | str | None = option(
        None, share, "samples per mini-batch on each rank (weak scaling); 1/4 if four ranks share "
        "a sample", "B", first=True)


@dataclass(frozen=True, kw_only=True)
class PredictArguments(StrategyArguments):
    """The options of ``hpcpar predict`` that determine plans and their prices."""

    plan: str | Plan | PlanResult | None = option(
        None, path, "price this plan file (instead of --network, --ranks, --batch, --strategy)",
        "plan.json", first=True)
    explain: bool = flag(
        "explain what limits each plan, and which changes would help most", section="prediction",
        first=True)
    columns: str | Iterable[str] = option(
        (), columns_asked, "also show these parts of the communication time: "
        f"{', '.join(COLUMNS)}", "NAME,...", section="prediction")
    efficiency: float | None = option(
        None, fraction, "choose the fastest plan with at least this parallel efficiency (0 to 1)",
        "E", section="prediction")
    deadline: float | None = option(
        None, amount, "choose the cheapest plan that trains all --epochs in this time", "HOURS",
        section="prediction")
    node_hours: float | None = option(
        None, amount, "choose the fastest plan that trains all --epochs within this budget", "H",
        section="prediction")


def price_plans(asked: PredictArguments) -> PredictResult:
    """Prices strategies for several numbers of ranks, or a given plan."""
    conditions = {"efficiency": asked.efficiency, "node_hours": asked.node_hours,
                  "deadline_s": None if asked.deadline is None else 3600 * asked.deadline}
    if asked.plan is not None:
        return _given_plan(asked.plan, asked)
    chooses = any(value is not None for value in conditions.values())
    ranks = USUAL_RANKS if asked.ranks is None and chooses else asked.ranks
    alone = asked.measured and ranks is asked.batch is asked.batch_per_rank is None
    _check_complete(asked, ranks, bool(alone))
    spec, net = network_of(asked.network, asked.input, asked.classes, asked.loss,
                           asked.label_smoothing)
    for name in ("deadline", "node_hours"):
        if getattr(asked, name) is not None and asked.epoch_samples(net) is None:
            raise InputError(f"--{name.replace('_', '-')} {NO_EPOCH}")
    machine, options = asked.loaded(machine_of(asked.machine or "local")), asked.planning(net)
    require_priced(machine, options["precision"], asked.synchronization)
    machine, cases = fit(machine, net, spec, asked.measured, options)
    each = 1 if alone else asked.batch or share(asked.batch_per_rank)
    if alone:
        candidates = [c.plain if c.machine else c.on(machine) for c in cases]
        skipped: list[dict[str, Any]] = []
    else:
        sizes = {p: asked.batch or weak_batch(each, p) for p in several_ranks(ranks)}
        with SearchProgress() as progress:
            candidates, skipped = _price(
                net, spec, sizes, names(asked.strategy), machine, tell=progress.tell, **options)
    scales = _scales(candidates, math.ceil(each), asked.epochs) if chooses else []
    return PredictResult(
        tuple(c.prediction for c in candidates), tuple(candidates), tuple(skipped),
        tuple(explain(net, c) for c in candidates) if asked.explain else (), tuple(scales),
        best_ranks(scales, **conditions), asked.epochs, _columns_s(candidates, asked.columns),
        tuple(needed(cases)) if alone else ())


predict = by_keyword(PredictArguments, price_plans)


def refuse(message: str, asked: StrategyArguments, names: Iterable[str]) -> None:
    """Refuses the first of these options that is given."""
    default = {f.name: f.default for f in fields(asked)}
    for name in names:
        if getattr(asked, name) != default[name]:
            raise InputError(message.format(f"--{name.replace('_', '-')}"))


def _scales(candidates: list[Candidate], batch: int, epochs: float) -> list[Scale]:
    """Efficiency and cost of every candidate.

    Parameters
    ----------
    batch : int
        Mini-batch of the single rank to which efficiencies refer; in weak scaling, a rank's share.
    """
    if not candidates:
        raise InputError("no plan to choose from: every strategy was skipped on every number of "
                         "ranks; use a larger batch or fewer ranks")
    task = candidates[0].task
    on = in_case(task.machine, 1, batch, task.options["precision"])
    one = replace(task, ranks=1, batch=batch, machine=on)
    return scaling(candidates, task.samples, epochs, price_strategy(one, "data"))


def _check_complete(asked: PredictArguments, ranks: object, alone: bool) -> None:
    """Checks that network, ranks, batch and strategies are given, each once; measured iterations
    that are asked about `alone` have ranks and batch.
    """
    if asked.network is None or (ranks is None and not alone):
        missing = "network" if asked.network is None else "ranks"
        raise InputError(
            f"--{missing} is missing; give --network, --ranks and --batch, or --plan plan.json")
    if not alone and (asked.batch is None) == (asked.batch_per_rank is None):
        raise InputError("give either --batch (over all ranks) or --batch-per-rank")
    if not names(asked.strategy):
        raise InputError("--strategy is empty; drop it, or name strategies, as in auto,data")


def _given_plan(given: str | Plan | PlanResult, asked: PredictArguments) -> PredictResult:
    """The price of a plan; its explanation compares it with plans of the same kind of training."""
    refuse("{} has no effect with --plan: the plan file fixes it; drop one of them", asked, (
        "network", "input", "classes", "loss", "label_smoothing", "ranks", "batch",
        "batch_per_rank", "min_batch_per_rank", "strategy", *FIXED))
    refuse("{} compares numbers of ranks: replace --plan with --network, --ranks and --batch",
           asked, ("efficiency", "deadline", "node_hours"))
    plan, machine = plan_and_machine(
        given.plan if isinstance(given, PlanResult) else given, asked.machine)
    plan, machine = asked.in_precision(plan), asked.loaded(machine)
    network = plan.network.build()
    options = {name: getattr(plan, name) for name in KEPT} | {"bucket_bytes": None}
    task = auto.task(network, plan.network, plan.ranks, plan.batch, machine,
                     samples=asked.epoch_samples(network), accounting=asked.accounting,
                     **asked.pricing(network), **options)
    anchored = fit(machine, network, plan.network, asked.measured,
                   {**task.options, "gather": task.gather})[0]
    anchored = in_case(anchored, plan.ranks, plan.batch, plan.precision)
    priced = price_plan(replace(task, machine=anchored), plan)
    return PredictResult((priced.prediction,), (priced,), epochs=asked.epochs,
                         explanations=(explain(network, priced),) if asked.explain else (),
                         columns_s=_columns_s([priced], asked.columns))


def _columns_s(candidates: list[Candidate],
               columns: str | Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Parts of the communication time of each candidate, as columns name them."""
    return {name: tuple(_part_s(c, name) for c in candidates)
            for name in columns_asked(columns)}


def _part_s(candidate: Candidate, name: str) -> float:
    if phase := COLUMNS[name]:
        return candidate.prediction.phases[phase.value]["communication_s"]
    latency_s = _latency_s(candidate)
    return latency_s if name == "latency" else candidate.prediction.communication_s - latency_s


def _latency_s(candidate: Candidate) -> float:
    """The part of the communication time that unlimited bandwidth would leave."""
    t, plan = candidate.task, candidate.plan
    levels = tuple(replace(level, beta_s_per_byte=0.0) for level in t.machine.levels)
    host = t.machine.host and replace(t.machine.host, beta_s_per_byte=0.0,
                                      memory_bytes_per_s=math.inf)
    fast = replace(t.machine, levels=levels, host=host)
    plan = replace(plan, machine=plan.machine or t.machine)  # which keeps the algorithms
    return float(plan_costs(t.network, plan, fast, **t.price_options).communication_s)


def _price(network: Network, spec: NetworkSpec, sizes: Mapping[int, int],
           strategies: Iterable[str], machine: Machine,
           **options: Any) -> tuple[list[Candidate], list[dict[str, Any]]]:
    """Prices every strategy on every number of ranks; also returns the impossible cases.

    Parameters
    ----------
    sizes : mapping
        Number of ranks -> mini-batch.
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
            names = ["auto"] if pattern == "auto" else auto.expand(pattern, ranks, lambda: network)
            for strategy in names:
                one(strategy, ranks, batch)
    if not found and len(skipped) == 1:
        raise InputError(skipped[0]["reason"])
    return found, skipped
