"""Decides the price of candidates: named strategies are priced as families of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.cost.network import collective
from hpcpar.cost.price_family import Costs, price_family, price_steps
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.config import Floats, Ints
from hpcpar.plan.plan import OTHER_NORM, Plan, make_plan
from hpcpar.plan.strategies import configurations, entry_of, parse, plan_options, together
from hpcpar.plan.strategy import Configs
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import detailed, memory_of_ranks, plan_costs
from hpcpar.schedule.buckets import gradient_bytes
from hpcpar.schedule.runnable import require
from hpcpar.search.balance import balanced
from hpcpar.search.bucket_sizes import fastest_sizes
from hpcpar.search.task import LEAST_BATCH, PlanningTask

#: Multiple of the fastest plan's time beyond which a plan is not an alternative.
MUCH_SLOWER = 2.0
#: Number of first candidates that are shown, and therefore priced exactly.
SHOWN = 8
#: From this measured fraction on, all computation counts as measured.
WHOLLY = 1.0 - 1e-9


@dataclass(frozen=True)
class Candidate:
    """A strategy and its price; plan and detailed prediction are computed on first access.

    Attributes
    ----------
    upper_bound_bytes : int
        Upper bound of the largest rank's memory.
    parts : int
        Largest number of parts that a layer cuts the mini-batch into.
    measured : float
        Fraction of the compute time, 0 to 1, that comes from the machine's calibrated table.
    bucket_bytes : int
        The size of buckets behind the price.
    made : Plan or None
        The plan, if it does not follow from the strategy's name.
    exact_costs : Costs or None
        The costs of the single plan, if it was not only priced in a family.
    """

    task: PlanningTask
    strategy: str
    iteration_s: float
    upper_bound_bytes: int
    parts: int
    measured: float = 0.0
    bucket_bytes: int = 0
    made: Plan | None = None
    exact_costs: Costs | None = None

    @property
    def memory_bytes(self) -> int:
        """The memory of the largest rank."""
        return self.prediction.memory_bytes

    @cached_property
    def fits(self) -> bool:
        """True if the largest rank's memory is at most the device's."""
        t, limit = self.task, self.task.machine.device.memory_bytes
        if self.upper_bound_bytes <= limit:
            return True
        t.tell(f"memory of {self.strategy}")
        steps = self.exact_costs or price_steps(t.network, self.plan, t.machine, **t.price_options)
        return all(rank.total_bytes <= limit for rank in memory_of_ranks(
            t.network, self.plan, steps, **t.price_options))

    @property
    def speed(self) -> tuple[bool, float]:
        """Sort key: the time of an iteration.

        On a calibrated machine, candidates with measured compute times come first: a comparison of
        measured times with roofline estimates would only compare the two models.
        """
        estimated = bool(self.task.machine.compute) and self.measured < WHOLLY
        return estimated, self.iteration_s

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Sort key: candidates that fit come first, then the fastest."""
        return not self.fits, *self.speed

    @cached_property
    def refusal(self) -> str:
        """The reason why the plan cannot run or leaves ranks without samples; empty if none."""
        try:
            require(self.task.network, self.plan)
        except InputError as err:
            return str(err)
        batch = self.task.batch
        cuts = [int(c.n) for c in self.plan.configs.values()]
        parts, most = self.plan.microbatches * min(cuts), max(cuts)
        if parts > batch:
            return (f"a batch of {batch} cannot be cut into {parts} parts: ranks would have no "
                    "samples; use a larger batch, or a strategy that also cuts layers")
        if (least := self.task.options.get(LEAST_BATCH)) and most > self.task.most_parts:
            return (f"{self.strategy} cuts a batch of {batch} into {most} parts, but "
                    f"--min-batch-per-rank {least} allows {self.task.most_parts}; "
                    "name a strategy that also cuts layers, or auto")
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
        return price_plan(self.task, replace(self.plan, **changed))

    @property
    def other_statistics_s(self) -> float | None:
        """Time of an iteration with the other kind of batch statistics, sync or local.

        None on one rank and without batch normalization.
        """
        if not self.prediction.batch_norm or self.task.ranks == 1:
            return None
        return self.with_options(batch_norm=OTHER_NORM[self.plan.batch_norm]).iteration_s

    @cached_property
    def costs(self) -> Costs:
        """The costs of the single plan."""
        t = self.task
        return self.exact_costs or plan_costs(t.network, self.plan, t.machine, **t.price_options)

    def exact(self) -> Candidate:
        """The same plan with its exact costs."""
        return replace(self, iteration_s=float(self.costs.iteration_s), exact_costs=self.costs,
                       made=self.plan)

    @cached_property
    def prediction(self) -> Prediction:
        t = self.task
        return detailed(t.network, self.plan, t.machine, self.costs, samples=t.samples,
                        **t.price_options)


def priced(task: PlanningTask, strategies: Iterable[str]) -> list[Candidate]:
    """All strategies with their prices, in the given order."""
    names = list(strategies)
    in_families = [name for name in names if not entry_of(name).apart]
    by_name = {name: _with_own_schedule(task, name) for name in names if entry_of(name).apart}
    by_name |= _families(task, {name: configurations(task.network, name, task.ranks, task.gather)
                                for name in in_families})
    return [by_name[name] for name in names]


def priced_configurations(task: PlanningTask, configs: Mapping[str, Configs]) -> list[Candidate]:
    """Plans with these configurations by name, priced in families; exact for the first that fit."""
    made = [replace(c, made=Plan(
        task.spec, task.ranks, task.batch, name, configs[name], machine=task.machine,
        **task.plan_options | {"bucket_bytes": c.bucket_bytes}))
        for name, c in _families(task, configs).items()]
    exact = {c.strategy: c for c in _priced_exactly(made, SHOWN)}
    return [exact[c.strategy] for c in made]


def _with_own_schedule(task: PlanningTask, strategy: str) -> Candidate:
    """A priced strategy whose number of steps depends on its grid."""
    task.tell(f"pricing {strategy}")
    return (best_pipeline if entry_of(strategy).pipeline else price_strategy)(task, strategy)


def best_of(candidates: Iterable[Candidate]) -> Candidate:
    """The first candidate in `Candidate.order`, without checking the memory of slower ones."""
    by_speed = _priced_exactly(candidates, 1)
    return next((c for c in by_speed if c.fits), by_speed[0])


def _priced_exactly(candidates: Iterable[Candidate], count: int) -> list[Candidate]:
    """Candidates by speed, with exact prices for the first `count` that fit and all before them.

    Candidates that are `MUCH_SLOWER` than the first that fits keep their family's prices.
    """
    by_speed = sorted(candidates, key=lambda c: c.speed)
    i, fitting = 0, list[Candidate]()
    while i < len(by_speed) and len(fitting) < count:
        candidate = by_speed[i]
        if fitting and candidate.iteration_s > MUCH_SLOWER * fitting[0].iteration_s:
            break
        if candidate.exact_costs is None and candidate.task.ranks <= collective.MOST_RANKS:
            by_speed[i] = candidate.exact()
            by_speed.sort(key=lambda c: c.speed)
            i, fitting = 0, []  # the order may have changed
        else:
            fitting += [candidate] * candidate.fits
            i += 1
    return by_speed


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates sorted by `Candidate.order`, with exact prices for the first `SHOWN` that fit.

    Candidates that are `MUCH_SLOWER` than the first come last, sorted only by time; checking their
    memory would take long.
    """
    by_speed = _priced_exactly(candidates, SHOWN)
    estimated, fastest_s = next((c for c in by_speed if c.fits), by_speed[0]).speed
    near = [c for c in by_speed if c.speed <= (estimated, MUCH_SLOWER * fastest_s)]
    return sorted(near, key=lambda c: c.order) + by_speed[len(near):]


def _families(task: PlanningTask, configs: Mapping[str, Configs]) -> dict[str, Candidate]:
    """Price strategies as families of strategies that sum gradients in the same buckets."""
    families: dict[tuple[object, ...], list[str]] = {}
    for name, strategy_configs in configs.items():
        families.setdefault(_bucket_key(task.network, strategy_configs), []).append(name)
    candidates: dict[str, Candidate] = {}
    for names in families.values():
        task.tell(f"pricing {', '.join(names[:3])}{' ...' * (len(names) > 3)}")
        family = _family(task, names, together([configs[name] for name in names]))
        candidates |= zip(names, family, strict=True)
    return {name: candidates[name] for name in configs}


def _bucket_key(network: Network, configs: Configs) -> tuple[object, ...]:
    """A key that is equal for strategies whose layers may share the same buckets.

    It contains the layers with equal configurations, and the weighted layers that cut channels.
    """
    first: dict[object, int] = {}
    keys = [configs[layer.name].key for layer in network.layers]
    return (tuple(first.setdefault(key, i) for i, key in enumerate(keys)),
            tuple(configs[layer.name].cuts_channels for layer in network.weighted))


def _family(task: PlanningTask, strategies: list[str], configs: Configs) -> list[Candidate]:
    """Price strategies together; `configs` has one entry per strategy."""
    plan = Plan(task.spec, task.ranks, task.batch, strategies[0], configs, **task.plan_options)
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    cases, spare_bytes = len(strategies), 0
    seconds: Floats = costs.iteration_s
    sizes: Ints = plan.bucket_bytes
    if task.opens_buckets:
        sizes, seconds = fastest_sizes(task.network, plan, task.machine, costs)
        # the memory in `costs` contains the layers' messages, not the larger buckets
        spare_bytes = sum(gradient_bytes(task.network, plan, layer)
                          for layer in task.network.weighted)
    sizes, seconds = np.broadcast_to(sizes, cases), np.broadcast_to(seconds, cases)
    bounds = np.broadcast_to(costs.memory.total_bytes, cases) + spare_bytes
    parts = np.broadcast_to(sample_parts(plan), cases)
    measured = np.broadcast_to(costs.measured_compute, cases)
    return [Candidate(task=task, strategy=strategy, iteration_s=float(seconds[i]),
                      upper_bound_bytes=int(bounds[i]), parts=int(parts[i]),
                      measured=float(measured[i]), bucket_bytes=int(sizes[i]))
            for i, strategy in enumerate(strategies)]


def price_strategy(task: PlanningTask, strategy: str) -> Candidate:
    """Price a single named strategy."""
    return _fastest_buckets(_named(task, strategy))


def _named(task: PlanningTask, strategy: str) -> Candidate:
    plan = make_plan(task.spec, strategy, task.ranks, task.batch, gather=task.gather,
                     network=task.network, machine=task.machine, **task.plan_options)
    return _balanced(task, plan) if entry_of(strategy).pipeline else price_plan(task, plan)


def stages_and_ranks(strategy: str, ranks: int) -> tuple[int, int]:
    """Number of stages of a named pipeline, and ranks of each stage."""
    count, stage_ranks = parse(strategy)[1] or (ranks, 1)
    return count, stage_ranks


def microbatches_tried(task: PlanningTask, strategy: str) -> list[int]:
    """Four, two or eight micro-batches per stage of a pipeline, or only the given number."""
    if "microbatches" in task.plan_options:
        return [task.plan_options["microbatches"]]
    usual = plan_options(strategy, task.ranks, task.batch).get("microbatches", 1)
    most = task.batch // stages_and_ranks(strategy, task.ranks)[1]
    others = (usual // 4 * 2, usual // 4 * 8)
    return [usual, *(number for number in others if 1 < number <= most)]


def best_pipeline(task: PlanningTask, strategy: str) -> Candidate:
    """A pipeline with the fastest number of micro-batches, from `microbatches_tried`.

    The time of a layer depends on the micro-batch, so every number has its own balanced stages.
    """
    usual = _named(task, strategy)
    others = [_balanced(task, replace(usual.plan, microbatches=number))
              for number in microbatches_tried(task, strategy)[1:]]
    return _fastest_buckets(best_of([usual, *others]))


def _balanced(task: PlanningTask, plan: Plan) -> Candidate:
    """A priced plan, or the same pipeline with balanced stages if that is better."""
    costs = plan_costs(task.network, plan, task.machine, **task.price_options)
    candidate = price_plan(task, plan, costs)
    even = balanced(task.network, plan, costs)
    return candidate if even is plan else best_of([candidate, price_plan(task, even)])


def of_plan(task: PlanningTask, plan: Plan) -> Candidate:
    """A priced plan, with the fastest size of buckets if the search chooses it."""
    size = task.options.get("bucket_bytes", plan.bucket_bytes)
    return _fastest_buckets(price_plan(task, replace(plan, bucket_bytes=size or 0)))


def _fastest_buckets(candidate: Candidate) -> Candidate:
    """The candidate, or the same plan with the fastest size of buckets if the search chooses it."""
    t = candidate.task
    if not t.opens_buckets:
        return candidate
    sizes, _ = fastest_sizes(t.network, candidate.plan, t.machine, candidate.costs)
    return best_of([candidate.with_options(bucket_bytes=int(sizes[0])), candidate])


def price_plan(task: PlanningTask, plan: Plan, costs: Costs | None = None) -> Candidate:
    """Price a given plan, unless its costs are known."""
    if costs is None:
        costs = plan_costs(task.network, plan, task.machine, **task.price_options)
    return Candidate(task=task, strategy=plan.strategy, iteration_s=float(costs.iteration_s),
                     upper_bound_bytes=int(costs.memory.total_bytes), parts=int(sample_parts(plan)),
                     measured=float(costs.measured_compute), bucket_bytes=plan.bucket_bytes,
                     made=plan, exact_costs=costs)


def sample_parts(plan: Plan) -> Ints:
    """Largest number of parts, over all passes, that a layer cuts the mini-batch into."""
    most: Ints = 1
    for config in plan.configs.values():
        most = np.maximum(most, config.n)
    return most * plan.microbatches * (plan.fc_passes if plan.switch == "each" else 1)
