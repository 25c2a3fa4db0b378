"""Prices of strategies on numbers of ranks, and the choice of a number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcpar.api.checks import amount, argument, fraction, names, optional, positive, positives
from hpcpar.api.options import PlanningOptions
from hpcpar.api.plan import PlanResult
from hpcpar.api.results import Record, TableResult, prediction_record
from hpcpar.api.sources import machine_of, machine_of_plan, network_of
from hpcpar.cost.price_plan import Prediction, price
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.report import perfetto, prediction_bars, timeline_plot
from hpcpar.report.tables import seconds
from hpcpar.search import auto, scaling
from hpcpar.search.candidates import Candidate, alone
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.scaling import Scale

if TYPE_CHECKING:
    from hpcpar.api.sources import MachineLike, NetworkLike

#: Default numbers of ranks to choose from.
USUAL_RANKS = [2**i for i in range(11)]


@dataclass(frozen=True)
class SkippedCase:
    """A strategy that a number of ranks cannot follow."""

    strategy: str
    ranks: int
    reason: str


@dataclass(frozen=True, repr=False)
class PredictResult(TableResult):
    """Prices of plans.

    Attributes
    ----------
    candidates : tuple of Candidate
        The priced strategies; empty for a given plan.
    scales : tuple of Scale
        Efficiency, time and cost of each, where a condition was given.
    choice : Scale or None
        The one that meets the conditions.
    """

    predictions: tuple[Prediction, ...]
    candidates: tuple[Candidate, ...] = ()
    skipped: tuple[SkippedCase, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    scales: tuple[Scale, ...] = ()
    choice: Scale | None = None

    @property
    def fastest(self) -> Prediction:
        """The shortest epoch of those that fit, or of all where none does.

        Raises
        ------
        InputError
            Every strategy was skipped.
        """
        if not self.predictions:
            raise InputError("nothing was priced: every strategy was skipped; use a larger batch "
                             "or fewer ranks")
        return min(self.predictions, key=lambda p: (not p.fits, p.iteration_s / p.batch))

    @cached_property
    def data(self) -> dict[int, Prediction]:
        """Data parallelism by number of ranks, the reference of speedups."""
        tasks = {c.task.ranks: c.task for c in self.candidates}
        return {ranks: alone(task, "data").prediction for ranks, task in tasks.items()
                if ranks <= task.batch}

    def to_json(self) -> dict[str, Any]:
        """The document of ``hpcpar predict --json``."""
        single = len(self.predictions) == 1 and not self.skipped
        documents: list[dict[str, Any]] = [p.to_json(steps=single) for p in self.predictions]
        for data, explanation in zip(documents, self.explanations, strict=False):
            data["explain"] = explanation.to_json()
        document: dict[str, Any] = {"predictions": documents,
                                    "skipped": [asdict(case) for case in self.skipped]}
        if single and not self.scales:
            document = documents[0]
        if self.scales:
            document |= {"scaling": [s.to_json() for s in self.scales],
                         "choice": self.choice.to_json() if self.choice else None}
        return document

    def records(self) -> Sequence[Record]:
        """The price of every plan, with its efficiency and cost where a condition was given."""
        records = [prediction_record(p) for p in self.predictions]
        for record, s in zip(records, self.scales, strict=False):
            record |= {"efficiency": s.efficiency, "run_s": s.run_s, "node_hours": s.node_hours}
        return records

    def plot(self, path: str | None = None) -> Any:
        """Draws a panel of bars for each number of ranks, into a file where a path is given;
        returns the figure.
        """
        return prediction_bars.bars(self.predictions, self.data, path)

    def plot_timeline(self, path: str | None = None) -> Any:
        """Draws the simulated timelines; the rest is as in `plot`."""
        return timeline_plot.timelines(self.predictions, path)

    def save_timeline(self, path: str) -> None:
        """Writes the simulated timelines for ui.perfetto.dev or chrome://tracing."""
        perfetto.save(self.predictions, path)

    def __repr__(self) -> str:
        if not self.predictions:
            return f"no plan: {len(self.skipped)} strategies were skipped"
        p = self.fastest
        lines = [f"{p.network} on {p.machine}: {len(self.predictions)} priced, "
                 f"{len(self.skipped)} skipped; fastest {p.strategy} on {p.ranks} ranks, "
                 f"{seconds(p.iteration_s)} an iteration"]
        if self.choice is not None:
            s = self.choice
            lines.append(f"choice: {s.candidate.strategy} on {s.ranks} ranks, {seconds(s.run_s)}, "
                         f"{s.node_hours:.4g} node-hours, {s.efficiency:.1%} efficiency")
        return "\n".join(lines)


def predict(network: NetworkLike | None = None, ranks: int | str | Iterable[int] | None = None,
            batch: int | None = None, machine: MachineLike | None = None,
            strategy: str | Iterable[str] = "data", *, plan: str | Plan | PlanResult | None = None,
            batch_per_rank: int | None = None, input: Shape | str | None = None,
            classes: int | None = None, forward_only: bool = False, explain: bool = False,
            efficiency: float | None = None, deadline: float | None = None,
            node_hours: float | None = None, epochs: float = 1.0,
            **options: Any) -> PredictResult:
    """Prices strategies on numbers of ranks, or a plan.

    Parameters
    ----------
    network, machine, input
        As in `hpcpar.plan`; the machine is by default the plan's, else ``local``.
    ranks : int, or iterable of int
        By default, where a condition is given, 1, 2, 4, ..., 1024.
    strategy : str, or iterable of str
        ``grid:*`` stands for every grid, ``auto`` for the fastest that fits.
    plan : str, Plan or PlanResult, optional
        A plan file or a plan, instead of network, ranks, batch and strategy.
    batch_per_rank : int, optional
        Samples of a mini-batch on each rank, instead of `batch`.
    forward_only : bool
        Prices the forward pass alone.
    explain : bool
        Also says what limits each plan, and what would help.
    efficiency, deadline, node_hours : float, optional
        Conditions: least parallel efficiency (0 to 1), longest training (hours), largest cost.
    epochs : float
        Length of the training.
    options
        Those of `hpcpar.api.options.PlanningOptions`.

    Raises
    ------
    InputError
        An argument is not possible.
    """
    conditions = _Conditions(
        optional("efficiency", fraction, efficiency), optional("deadline", amount, deadline),
        optional("node_hours", amount, node_hours), argument("epochs", amount, epochs))
    chosen = PlanningOptions.of(options)
    if plan is not None:
        _refuse_beside_a_plan(
            network=network, input=input, classes=classes, ranks=ranks, batch=batch,
            batch_per_rank=batch_per_rank, gather=chosen.gather, overlap=chosen.overlap)
        conditions.refuse(explain)
        return PredictResult((_price_plan(plan, machine, chosen, not forward_only),))
    if ranks is None and conditions.asked:
        ranks = USUAL_RANKS
    if network is None or ranks is None:
        missing = "network" if network is None else "ranks"
        raise InputError(
            f"--{missing} is missing; give --network, --ranks and --batch, or --plan plan.json")
    if (batch is None) == (batch_per_rank is None):
        raise InputError("give --batch (over all ranks) or --batch-per-rank, one of the two")
    share = optional("batch_per_rank", positive, batch_per_rank)
    whole = optional("batch", positive, batch)
    sizes = {p: whole or (share or 1) * p for p in argument("ranks", positives, ranks)}
    spec, net = network_of(network, input, classes)
    candidates, skipped = _price(
        net, spec, sizes, names(strategy), machine_of(machine or "local"),
        training=not forward_only, **chosen.planning(spec))
    scales, choice = conditions.choose(candidates, whole or share or 1)
    return PredictResult(tuple(c.prediction for c in candidates), tuple(candidates), tuple(skipped),
                         _explanations(candidates) if explain else (), tuple(scales), choice)


@dataclass(frozen=True)
class _Conditions:
    """What a training must keep to."""

    efficiency: float | None
    deadline: float | None
    node_hours: float | None
    epochs: float

    @property
    def asked(self) -> bool:
        """Whether there is a condition."""
        return any(v is not None for v in (self.efficiency, self.deadline, self.node_hours))

    def refuse(self, explain: bool) -> None:
        """Refuses what compares strategies and ranks."""
        given = vars(self) | {"epochs": None, "explain": explain or None}
        for name, value in given.items():
            if value is not None:
                raise InputError(f"--{name.replace('_', '-')} compares strategies and ranks: give "
                                 "--network, --ranks and --batch, not --plan")

    def choose(self, candidates: list[Candidate], batch: int) -> tuple[list[Scale], Scale | None]:
        """Efficiency and cost of every candidate, and the one that meets the conditions.

        Parameters
        ----------
        batch : int
            The mini-batch that one rank would compute; in weak scaling, one rank's share.
        """
        if not self.asked:
            return [], None
        if not candidates:
            raise InputError("nothing to choose from: every strategy was skipped on every number "
                             "of ranks; use a larger batch or fewer ranks")
        task = candidates[0].task
        serial_s = alone(replace(task, ranks=1, batch=batch), "data").iteration_s / batch
        scales = scaling.scaling(candidates, task.samples or 0, self.epochs,
                                 scaling.node_ranks(task.machine), serial_s)
        deadline_s = None if self.deadline is None else 3600 * self.deadline
        return scales, scaling.best_ranks(scales, efficiency=self.efficiency, deadline_s=deadline_s,
                                          node_hours=self.node_hours)


def _refuse_beside_a_plan(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--plan and --{name.replace('_', '-')} exclude each other: the plan "
                             "file fixes it")


def _price_plan(given: str | Plan | PlanResult, machine: MachineLike | None,
                chosen: PlanningOptions, training: bool) -> Prediction:
    plan = plans.load(given) if isinstance(given, str) else (
        given.plan if isinstance(given, PlanResult) else given)
    where = f"plan file {given}" if isinstance(given, str) else "the plan"
    on = machine_of_plan(plan, where) if machine is None else machine_of(machine)
    return price(plan.network.build(), plan, on, samples=chosen.epoch_samples(plan.network),
                 accounting=chosen.accounting, training=training, **chosen.pricing)


def _price(network: Network, spec: NetworkSpec, sizes: Mapping[int, int],
           strategies: Iterable[str], machine: Machine,
           **options: Any) -> tuple[list[Candidate], list[SkippedCase]]:
    """Every strategy on every number of ranks, and those that cannot be cut so.

    Parameters
    ----------
    sizes : mapping
        The mini-batch by number of ranks.
    """
    found: list[Candidate] = []
    skipped: list[SkippedCase] = []

    def one(strategy: str, ranks: int, batch: int) -> None:
        try:
            candidate = auto.price_named(network, spec, strategy, ranks, batch, machine, **options)
        except InputError as err:
            if "stages" not in str(err):
                raise
            reason = str(err)
        else:
            if candidate.parts <= batch:
                found.append(candidate)
                return
            reason = f"a batch of {batch} cannot be cut into {candidate.parts} parts"
        skipped.append(SkippedCase(strategy, ranks, reason))

    for ranks, batch in sizes.items():
        for pattern in strategies:
            if pattern == "auto":
                found.append(auto.best(network, spec, ranks, batch, machine, **options)[0])
                continue
            for strategy in auto.expand(pattern, ranks):
                one(strategy, ranks, batch)
    return found, skipped


def _explanations(candidates: list[Candidate]) -> tuple[Explanation, ...]:
    return tuple(explain(c.task.network, c) for c in candidates)
