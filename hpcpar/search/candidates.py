"""Candidates: strategies with their prices. Named strategies are priced as families of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.cost.compute.priced_formats import require_priced
from hpcpar.cost.memory.bound import memory_lower_bound
from hpcpar.cost.price_family import Costs, price_family
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.config import Floats, Ints
from hpcpar.plan.plan import OTHER_NORM, NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import configurations, entry_of, parse, plan_options, together
from hpcpar.plan.strategy_request import Configs
from hpcpar.schedule.buckets import gradient_bytes
from hpcpar.schedule.runnable import require
from hpcpar.search.balance import balanced
from hpcpar.search.bucket_sizes import fastest_sizes
from hpcpar.simulation.price_plan import (
    EXACT_RANKS,
    Prediction,
    detailed,
    memory_of_ranks,
    price_alone,
)

#: Plan options; all others go to pricing.
PLAN_OPTIONS = ("overlap", "collectives", "precision", "synchronisation", "batch_norm",
                "microbatches", "optimizer", "order", "bucket_bytes", "recompute")

#: Factor beyond which nobody would take a plan in place of the fastest.
MUCH_SLOWER = 2.0
#: The first candidates, which are shown, are priced one by one: at most this many.
SHOWN = 8
#: Measured fraction from which on all computing counts as measured.
WHOLLY = 1.0 - 1e-9


@dataclass(frozen=True)
class PlanningTask:
    """A planning problem: a network, a number of ranks and a mini-batch on a machine.

    Attributes
    ----------
    gather : str
        One of `hpcpar.plan.strategies.GATHERS`.
    samples : int or None
        Samples of an epoch.
    options : dict
        Those of `Plan` (see `PLAN_OPTIONS`) and of `price`. ``bucket_bytes=None`` takes the fastest
        size of every plan.
    tell : callable
        Is called with words for what the search does next.
    """

    network: Network
    spec: NetworkSpec
    ranks: int
    batch: int
    machine: Machine
    gather: str
    samples: int | None
    options: dict[str, Any]
    tell: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_priced(self.machine, self.options.get("precision", Plan.precision))

    @property
    def plan_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k in PLAN_OPTIONS and v is not None}

    @property
    def opens_buckets(self) -> bool:
        """True where the size of buckets is to be chosen."""
        return self.options.get("bucket_bytes", 0) is None

    @property
    def price_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k not in PLAN_OPTIONS}


@dataclass(frozen=True)
class Candidate:
    """A strategy and its price; plan and detailed prediction are computed on first access.

    Attributes
    ----------
    upper_bound_bytes : int
        Upper bound of the largest rank's memory.
    parts : int
        Largest number of parts that a layer cuts the mini-batch into; ranks beyond the batch are
        idle.
    measured : float
        Fraction of the computing, 0 to 1, whose time comes from the machine's calibrated table.
    bucket_bytes : int
        The size of buckets that the price assumes.
    made : Plan or None
        The plan, where it does not follow from the strategy's name.
    priced_alone : Costs or None
        Its price, where it was not only priced in a family, in closed form.
    """

    task: PlanningTask
    strategy: str
    iteration_s: float
    upper_bound_bytes: int
    parts: int
    measured: float = 0.0
    bucket_bytes: int = 0
    made: Plan | None = None
    priced_alone: Costs | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory of the largest rank."""
        return self.prediction.memory_bytes

    @cached_property
    def fits(self) -> bool:
        """True where the largest rank's memory is at most the device's; worked out where its bounds
        leave it open.
        """
        t, limit = self.task, self.task.machine.device.memory_bytes
        if self.upper_bound_bytes <= limit:
            return True
        t.tell(f"memory of {self.strategy}")
        least = memory_lower_bound(t.network, self.plan, training=t.options.get("training", True))
        least = least.scaled(t.options.get("gamma", 1.0))
        return bool(least.total_bytes <= limit) and all(
            held.total_bytes <= limit
            for held in memory_of_ranks(t.network, self.plan, self.costs, **t.price_options))

    @property
    def speed(self) -> tuple[bool, float]:
        """Sort key: by time.

        On a calibrated machine, candidates whose computing was measured come before the others:
        comparing measured times with roofline estimates would only compare the two models.
        """
        estimated = bool(self.task.machine.compute) and self.measured < WHOLLY
        return estimated, self.iteration_s

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Sort key: candidates that fit come first, then by time."""
        return not self.fits, *self.speed

    @cached_property
    def refusal(self) -> str:
        """Why the plan cannot be run, or has ranks without samples in every layer; else empty."""
        try:
            require(self.task.network, self.plan)
        except InputError as err:
            return str(err)
        batch = self.task.batch
        parts = self.plan.microbatches * min(int(c.n) for c in self.plan.configs.values())
        if parts > batch:
            return (f"a batch of {batch} cannot be cut into {parts} parts: ranks would have no "
                    "samples; use a larger batch, or a strategy that also cuts layers")
        return ""

    @cached_property
    def plan(self) -> Plan:
        t = self.task
        if self.made is not None:
            return self.made
        options = t.plan_options | {"bucket_bytes": self.bucket_bytes}
        return make_plan(t.spec, self.strategy, t.ranks, t.batch, gather=t.gather,
                         network=t.network, machine=t.machine, **options)

    def with_options(self, **changed: Any) -> Candidate:
        """The same plan with other options of `Plan`."""
        return _priced(self.task, replace(self.plan, **changed))

    @property
    def other_statistics_s(self) -> float | None:
        """Time of an iteration if batch normalisation took statistics of the other kind, sync or
        local; None on one rank and without batch normalisation.
        """
        if not self.prediction.batch_norm or self.task.ranks == 1:
            return None
        return self.with_options(batch_norm=OTHER_NORM[self.plan.batch_norm]).iteration_s

    @cached_property
    def costs(self) -> Costs:
        """The price of the plan alone."""
        return self.priced_alone or _costs(self.task, self.plan)

    def exact(self) -> Candidate:
        """The same plan with its price alone."""
        return replace(self, iteration_s=float(self.costs.iteration_s), priced_alone=self.costs,
                       made=self.plan)

    @cached_property
    def prediction(self) -> Prediction:
        t = self.task
        return detailed(t.network, self.plan, t.machine, self.costs, samples=t.samples,
                        **t.price_options)


def priced(task: PlanningTask, strategies: Iterable[str]) -> list[Candidate]:
    """Every strategy with its price, in the order given."""
    names = list(strategies)
    together_names = [name for name in names if not entry_of(name).apart]
    found = {name: _with_own_schedule(task, name) for name in names if entry_of(name).apart}
    found |= zip(together_names, _families(task, together_names), strict=True)
    return [found[name] for name in names]


def _with_own_schedule(task: PlanningTask, strategy: str) -> Candidate:
    """A strategy whose number of steps depends on its grid."""
    task.tell(f"pricing {strategy}")
    return (best_pipeline if entry_of(strategy).pipeline else alone)(task, strategy)


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    """The first in `Candidate.order`; memory is worked out for those that are faster only."""
    by_speed = _settled(candidates, 1)
    return next((c for c in by_speed if c.fits), by_speed[0])


def _settled(candidates: Iterable[Candidate], count: int) -> list[Candidate]:
    """Candidates by speed; the first `count` that fit, and all before them, are priced alone, but
    for those that are `MUCH_SLOWER` than the first that fits.
    """
    found = sorted(candidates, key=lambda c: c.speed)
    i, fitting = 0, list[Candidate]()
    while i < len(found) and len(fitting) < count:
        each = found[i]
        if fitting and each.iteration_s > MUCH_SLOWER * fitting[0].iteration_s:
            break
        if each.priced_alone is None and each.task.ranks <= EXACT_RANKS:
            found[i] = each.exact()
            found.sort(key=lambda c: c.speed)
            i, fitting = 0, []  # it may have come to lie before others
        else:
            fitting += [each] * each.fits
            i += 1
    return found


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates sorted by `Candidate.order`; the first `SHOWN` that fit are priced alone.

    Those that are `MUCH_SLOWER` than the first come last, by time alone: whether they fit takes
    long to find out, and decides nothing.
    """
    by_speed = _settled(candidates, SHOWN)
    estimated, fastest_s = next((c for c in by_speed if c.fits), by_speed[0]).speed
    near = [c for c in by_speed if c.speed <= (estimated, MUCH_SLOWER * fastest_s)]
    return sorted(near, key=lambda c: c.order) + by_speed[len(near):]


def _families(task: PlanningTask, strategies: list[str]) -> list[Candidate]:
    """Prices strategies as families; those of one family sum gradients in the same buckets."""
    families: dict[tuple[object, ...], list[int]] = {}
    each = [configurations(task.network, name, task.ranks, task.gather) for name in strategies]
    for i, configs in enumerate(each):
        families.setdefault(_bucket_key(task.network, configs), []).append(i)
    found: dict[int, Candidate] = {}
    for members in families.values():
        names = [strategies[i] for i in members]
        task.tell(f"pricing {', '.join(names[:3])}{' ...' * (len(names) > 3)}")
        priced_members = _family(task, names, together([each[i] for i in members]))
        found |= zip(members, priced_members, strict=True)
    return [found[i] for i in range(len(strategies))]


def _bucket_key(network: Network, configs: Configs) -> tuple[object, ...]:
    """Equal for strategies whose layers may share the same buckets.

    It says which layers have the same configuration, and which weighted layers cut channels.
    """
    first: dict[object, int] = {}
    keys = [configs[layer.name].key for layer in network.layers]
    return (tuple(first.setdefault(key, i) for i, key in enumerate(keys)),
            tuple(configs[layer.name].cuts_channels for layer in network.weighted))


def _family(task: PlanningTask, strategies: list[str], configs: Configs) -> list[Candidate]:
    """Prices strategies whose configurations are the cases of `configs`."""
    plan = Plan(task.spec, task.ranks, task.batch, strategies[0], configs, **task.plan_options)
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    cases, spare_bytes = len(strategies), 0
    seconds: Floats = costs.iteration_s
    sizes: Ints = plan.bucket_bytes
    if task.opens_buckets:
        sizes, seconds = fastest_sizes(task.network, plan, task.machine, costs,
                                       **task.price_options)
        # the messages of buckets are in flight in place of the layers', whose memory is known
        spare_bytes = sum(gradient_bytes(task.network, plan, layer)
                          for layer in task.network.weighted)
    sizes, seconds = np.broadcast_to(sizes, cases), np.broadcast_to(seconds, cases)
    held = np.broadcast_to(costs.memory.total_bytes, cases) + spare_bytes
    parts = np.broadcast_to(sample_parts(plan), cases)
    measured = np.broadcast_to(costs.measured_compute, cases)
    return [Candidate(task=task, strategy=strategy, iteration_s=float(seconds[i]),
                      upper_bound_bytes=int(held[i]), parts=int(parts[i]),
                      measured=float(measured[i]), bucket_bytes=int(sizes[i]))
            for i, strategy in enumerate(strategies)]


def alone(task: PlanningTask, strategy: str) -> Candidate:
    """Prices one strategy by itself."""
    return _fastest_buckets(_named(task, strategy))


def _named(task: PlanningTask, strategy: str) -> Candidate:
    plan = make_plan(task.spec, strategy, task.ranks, task.batch, gather=task.gather,
                     network=task.network, machine=task.machine, **task.plan_options)
    return _balanced(task, plan) if entry_of(strategy).pipeline else _priced(task, plan)


def stages_and_ranks(strategy: str, ranks: int) -> tuple[int, int]:
    """Stages of a named pipeline, and ranks of each."""
    count, stage_ranks = parse(strategy)[1] or (ranks, 1)
    return count, stage_ranks


def microbatches_tried(task: PlanningTask, strategy: str) -> list[int]:
    """Four, two or eight micro-batches for each stage of a pipeline; a given number alone."""
    if "microbatches" in task.plan_options:
        return [task.plan_options["microbatches"]]
    usual = plan_options(strategy, task.ranks, task.batch).get("microbatches", 1)
    most = task.batch // stages_and_ranks(strategy, task.ranks)[1]
    others = (usual // 4 * 2, usual // 4 * 8)
    return [usual, *(number for number in others if 1 < number <= most)]


def best_pipeline(task: PlanningTask, strategy: str) -> Candidate:
    """A pipeline with the fastest number of micro-batches, of `microbatches_tried`.

    Stages are balanced for each number, because the time of a layer depends on the micro-batch.
    """
    usual = _named(task, strategy)
    others = [_balanced(task, replace(usual.plan, microbatches=number))
              for number in microbatches_tried(task, strategy)[1:]]
    return _fastest_buckets(best_of([usual, *others]))


def _balanced(task: PlanningTask, plan: Plan) -> Candidate:
    """A plan with its price, or the same pipeline with balanced stages where that is better."""
    costs = _costs(task, plan)
    candidate = _candidate(task, plan, costs)
    again = balanced(task.network, plan, costs)
    return candidate if again is plan else best_of([candidate, _priced(task, again)])


def of_plan(task: PlanningTask, plan: Plan) -> Candidate:
    """A plan with its price, under the fastest size of buckets."""
    size = task.options.get("bucket_bytes", plan.bucket_bytes)
    return _fastest_buckets(_priced(task, replace(plan, bucket_bytes=size or 0)))


def _fastest_buckets(candidate: Candidate) -> Candidate:
    """A candidate without buckets, or with those of the fastest size where that is to be chosen."""
    t = candidate.task
    if not t.opens_buckets:
        return candidate
    sizes, _ = fastest_sizes(t.network, candidate.plan, t.machine, candidate.costs,
                             **t.price_options)
    return best_of([candidate.with_options(bucket_bytes=int(sizes[0])), candidate])


def _priced(task: PlanningTask, plan: Plan) -> Candidate:
    return _candidate(task, plan, _costs(task, plan))


def _costs(task: PlanningTask, plan: Plan) -> Costs:
    return price_alone(task.network, plan, task.machine, **task.price_options)


def _candidate(task: PlanningTask, plan: Plan, costs: Costs) -> Candidate:
    return Candidate(task=task, strategy=plan.strategy, iteration_s=float(costs.iteration_s),
                     upper_bound_bytes=int(costs.memory.total_bytes), parts=int(sample_parts(plan)),
                     measured=float(costs.measured_compute), bucket_bytes=plan.bucket_bytes,
                     made=plan, priced_alone=costs)


def sample_parts(plan: Plan) -> Ints:
    """Largest number of parts that a layer, with all passes, cuts the mini-batch into."""
    most: Ints = 1
    for config in plan.configs.values():
        most = np.maximum(most, config.n)
    return most * plan.microbatches * (plan.fc_passes if plan.switch == "each" else 1)
