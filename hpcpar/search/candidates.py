"""Many strategies priced together: they form a family, lowered and priced in one go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.cost.price_family import Costs, price_family
from hpcpar.cost.price_plan import Prediction, price
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import Configs, configurations, parse, plan_options, together
from hpcpar.search.balance import balanced

#: Options of a plan; what else is given prices it.
PLAN_OPTIONS = ("overlap", "collectives", "dtype", "synchronisation", "batch_norm", "microbatches", "optimizer", "order",
                "bucket_bytes", "recompute")

#: Strategies that are priced one by one, and lie outside the layer-wise search's space.
APART = ("pipeline", "owt-b", "owt-c")
#: From here on all computing counts as measured.
WHOLLY = 1.0 - 1e-9
#: Sizes of buckets that are tried where none is asked for: small ones start early, large ones pay
#: latency once.
BUCKETS = (1 << 20, 25 << 20)


@dataclass(frozen=True)
class Task:
    """What is planned: a network, a number of ranks and a mini-batch, on a machine, under some
    options.

    Attributes
    ----------
    options : dict
        Those of `Plan` (see `PLAN_OPTIONS`) and of `price`; with ``bucket_bytes=None`` the better
        of `BUCKETS` is taken.
    """

    network: Network
    spec: NetworkSpec
    ranks: int
    batch: int
    machine: Machine
    gather: str
    samples: int | None
    options: dict[str, Any]

    @property
    def plan_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k in PLAN_OPTIONS and v is not None}

    @property
    def choices(self) -> list[Task]:
        """The same with each size of buckets that is to be tried."""
        if self.options.get("bucket_bytes", 0) is not None:
            return [self]
        return [replace(self, options={**self.options, "bucket_bytes": size}) for size in BUCKETS]

    @property
    def price_options(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k not in PLAN_OPTIONS}


@dataclass(frozen=True)
class Candidate:
    """A strategy and its price; the plan and the detailed prediction are worked out when asked for.

    Attributes
    ----------
    parts : int
        Parts that the mini-batch is cut into, at most over layers: beyond the batch, ranks have
        nothing to do.
    measured : float
        Part of the computing, 0 to 1, whose time comes from the machine's calibrated table.
    made : Plan or None
        The plan, where it does not follow from the strategy's name.
    """

    task: Task
    strategy: str
    iteration_s: float
    memory_bytes: int
    parts: int
    measured: float = 0.0
    made: Plan | None = None

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.task.machine.device.memory_bytes

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Better candidates come first.

        On a calibrated machine those whose computing was measured, as far as there are any: a
        roofline's times beside measured ones of others would decide by how the two differ.
        """
        return not self.fits, bool(
            self.task.machine.compute) and self.measured < WHOLLY, self.iteration_s

    @cached_property
    def plan(self) -> Plan:
        t = self.task
        if self.made is not None:
            return self.made
        return make_plan(
            t.spec, self.strategy, t.ranks, t.batch, gather=t.gather, network=t.network, machine=files.to_dict(t.machine), **t.plan_options
        )

    def recomputing(self, segments: int) -> Candidate:
        """The same plan with activations computed again in the backward pass."""
        return _of_plan(self.task, replace(self.plan, recompute=segments))

    @cached_property
    def prediction(self) -> Prediction:
        return price(self.task.network, self.plan, self.task.machine, samples=self.task.samples,
                     **self.task.price_options)


def priced(task: Task, strategies: Iterable[str]) -> list[Candidate]:
    """Every strategy with its price, in the order given."""
    names = list(strategies)
    apart = {name: _apart(task, name) for name in names if parse(name)[0] in APART}
    rest = [name for name in names if name not in apart]
    found = apart | {
        name: _better(each) for name, *each in zip(rest, *(_families(choice, rest) for choice in task.choices), strict=True)
    }
    return [found[name] for name in names]


def _apart(task: Task, strategy: str) -> Candidate:
    """A strategy whose number of steps depends on its grid."""
    first, *others = task.choices
    found = (best_pipeline if parse(strategy)[0] == "pipeline" else _alone)(first, strategy)
    return _better([found, *(_with_bucket(choice, found.plan) for choice in others)])


def _better(found: Iterable[Candidate]) -> Candidate:
    return min(found, key=lambda c: c.order)


def _families(task: Task, strategies: list[str]) -> list[Candidate]:
    """Strategies priced together, as far as they sum gradients in the same buckets."""
    families: dict[Any, list[tuple[int, Configs]]] = {}
    for i, strategy in enumerate(strategies):
        configs = configurations(task.network, strategy, task.ranks, task.gather)
        families.setdefault(_sharing(task.network, configs), []).append((i, configs))
    out: dict[int, Candidate] = {}
    for members in families.values():
        places, each = zip(*members, strict=True)
        out |= zip(places, _family(task, [strategies[i] for i in places], together(each)),
                   strict=True)
    return [out[i] for i in range(len(strategies))]


def _sharing(network: Network, configs: Configs) -> Any:
    """Which layers have the same configuration, and which of them cut channels: what layers one
    bucket may take.
    """
    first: dict[Any, int] = {}
    keys = [configs[layer.name].key for layer in network.layers]
    return (tuple(first.setdefault(key, i) for i, key in enumerate(keys)),
            tuple(configs[layer.name].cuts_channels for layer in network.weighted))


def _family(task: Task, strategies: list[str], configs: Configs) -> list[Candidate]:
    plan = Plan(task.spec, task.ranks, task.batch, strategies[0], configs, **task.plan_options)
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    values = (costs.iteration_s, costs.memory.total_bytes, sample_parts(plan),
              costs.measured_compute)
    each = zip(*(np.broadcast_to(x, len(strategies)).tolist() for x in values), strict=True)
    return [Candidate(task, strategy, seconds, int(held), int(parts), float(measured))
            for strategy, (seconds, held, parts, measured) in zip(strategies, each, strict=True)]


def alone(task: Task, strategy: str) -> Candidate:
    """One strategy, priced by itself."""
    return _better(_alone(choice, strategy) for choice in task.choices)


def _alone(task: Task, strategy: str) -> Candidate:
    extra = plan_options(strategy, task.ranks, task.batch)
    return _balanced(task, make_plan(
        task.spec, strategy, task.ranks, task.batch, gather=task.gather, network=task.network, machine=files.to_dict(task.machine),
        **(extra | task.plan_options),
    ))


def best_pipeline(task: Task, strategy: str) -> Candidate:
    """A pipeline with the number of micro-batches, where none is asked for, that is fastest: twice,
    four or eight times its stages.

    With each number its stages are balanced: how long a layer takes depends on the micro-batch.
    """
    usual = alone(task, strategy)
    if "microbatches" in task.plan_options or usual.plan.microbatches == 1:
        return usual
    stages, most = usual.plan.microbatches // 4, task.batch // max(1, usual.parts // usual.plan.microbatches)
    others = [2 * stages, 8 * stages] if stages else []
    found = [_balanced(task, replace(usual.plan, microbatches=m)) for m in others if 1 < m <= most]
    return _better([usual, *found])


def _balanced(task: Task, plan: Plan) -> Candidate:
    """A plan, or the same pipeline with balanced stages where that is better."""
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    found, again = _candidate(task, plan, costs), balanced(task.network, plan, costs)
    return found if again is plan else _better([found, _of_plan(task, again)])


def of_plan(task: Task, plan: Plan) -> Candidate:
    """A plan with its price, with the size of buckets that suits it."""
    return _better(_with_bucket(choice, plan) for choice in task.choices)


def _with_bucket(task: Task, plan: Plan) -> Candidate:
    return _of_plan(task,
                    replace(plan, bucket_bytes=task.options.get("bucket_bytes", plan.bucket_bytes)))


def _of_plan(task: Task, plan: Plan) -> Candidate:
    """A plan with its price."""
    return _candidate(task, plan,
                      price_family(task.network, plan, task.machine, **task.price_options))


def _candidate(task: Task, plan: Plan, costs: Costs) -> Candidate:
    return Candidate(task, plan.strategy, float(costs.iteration_s), int(costs.memory.total_bytes), int(sample_parts(plan)),
                     float(costs.measured_compute), plan)


def sample_parts(plan: Plan) -> Any:
    """Parts that the mini-batch is cut into, at most over layers and micro-batches."""
    most: Any = 1
    for config in {id(c): c for c in plan.configs.values()}.values():
        most = np.maximum(most, config.n)
    return most * plan.microbatches * (plan.turns if plan.switch == "each" else 1)
