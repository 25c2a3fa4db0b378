"""Prices a single plan: simulates all its ranks, or prices one that stands for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcpar.cost.memory.memory import Memory
from hpcpar.cost.memory.prediction import rank_memories, total
from hpcpar.cost.memory.process import process_memory
from hpcpar.cost.network import collective
from hpcpar.cost.price_family import Costs, PricedSteps, PriceOptions, price_family, price_steps
from hpcpar.cost.rank_traffic import MOST_RANKS, RankTraffic, rank_traffic
from hpcpar.cost.timeline.timeline import StageTime
from hpcpar.cost.trust import trust
from hpcpar.machine.model import Machine
from hpcpar.network.data_sets import data_set_of
from hpcpar.network.graph import Network
from hpcpar.plan.limits import passed_limits
from hpcpar.plan.plan import Plan
from hpcpar.prediction.prediction import LayerCost, Prediction, StepCost
from hpcpar.schedule.steps import Comm
from hpcpar.simulation.simulate import Simulator

if TYPE_CHECKING:
    from typing_extensions import Unpack



def price(network: Network, plan: Plan, machine: Machine, *, samples: int | None = None,
          **options: Unpack[PriceOptions]) -> Prediction:
    """Price a plan.

    Parameters
    ----------
    machine : Machine
        Prices the steps. If the plan carries a machine of its own, that one chooses the algorithms.
    samples : int, optional
        Samples of an epoch, for `epoch_s`.
    options
        See `hpcpar.cost.price_family.price_steps`.
    """
    costs = plan_costs(network, plan, machine, **options)
    return detailed(network, plan, machine, costs, samples=samples, **options)


def plan_costs(network: Network, plan: Plan, machine: Machine,
               **options: Unpack[PriceOptions]) -> Costs:
    """The costs of a single plan, from a simulation of all ranks.

    On more than `collective.MOST_RANKS` ranks, and in the paper's accounting, one rank stands for
    all.
    """
    if plan.ranks > collective.MOST_RANKS or options.get("accounting") == "paper":
        return price_family(network, plan, machine, **options)
    priced = price_steps(network, plan, machine, **options)
    return Simulator(network, plan, priced.network_model.machine, priced).exact_costs()


def detailed(network: Network, plan: Plan, machine: Machine, costs: Costs, *,
             samples: int | None = None, **options: Unpack[PriceOptions]) -> Prediction:
    """The prediction of a plan from its costs; see `price` for the other parameters."""
    batch, iteration_s = plan.batch, float(costs.iteration_s)
    traffic = _traffic(costs, plan.ranks)
    steps = tuple(_step(machine, costs, traffic, index) for index in range(len(costs.prices)))
    stages = tuple(StageTime({i: float(seconds) for i, seconds in stage.exposed_s.items()},
                             float(stage.bubble_s)) for stage in costs.timeline.stages)
    training, gamma = options.get("training", True), options.get("gamma", 1.0)
    largest = max(rank_memories(network, plan, costs, training=training),
                  key=lambda rank: total(rank).total_bytes)
    layer_memory = {name: memory.scaled(gamma) for name, memory in largest.items()}
    known = data_set_of(network)
    normalized = any(layer.statistics == "batch" for layer in network.layers)
    return Prediction(
        network=plan.network.name, machine=machine.name, strategy=plan.strategy, ranks=plan.ranks,
        batch=batch, overlap=plan.overlap, accounting=options.get("accounting", "schedule"),
        iteration_s=iteration_s,
        epoch_s=None if samples is None else samples / batch * iteration_s,
        compute_s=float(costs.compute_s), communication_s=float(costs.communication_s),
        exposed_communication_s=float(costs.exposed_communication_s),
        bubble_s=float(costs.bubble_s), measured_compute=float(costs.measured_compute),
        communication_bytes=traffic.n_bytes, io_s=float(costs.io_s),
        memory=total(largest).scaled(gamma), memory_limit_bytes=machine.device.memory_bytes,
        process=process_memory(network, plan),
        layers=_layers(network, plan, costs, traffic, steps, layer_memory), steps=steps,
        stages=stages, total_s=float(costs.timeline.total_s), samples=samples,
        data_set=known.name if known and known.samples == samples else "",
        batch_norm=plan.batch_norm if normalized else "", precision=plan.precision,
        processor=machine.processor,
        training=training, trust=trust(network, plan, machine, costs),
        limits=passed_limits(network, plan),
    )


def memory_of_ranks(network: Network, plan: Plan, priced: PricedSteps,
                    **options: Unpack[PriceOptions]) -> Iterator[Memory]:
    """The memory of the candidates for the largest rank."""
    for rank in rank_memories(network, plan, priced, training=options.get("training", True)):
        yield total(rank).scaled(options.get("gamma", 1.0))


def _traffic(costs: Costs, ranks: int) -> RankTraffic:
    """The busiest rank's traffic: exact, or estimated step by step in a large job."""
    if ranks <= MOST_RANKS:
        return rank_traffic(costs.schedule)
    of_layer: dict[str, int] = defaultdict(int)
    for step, cost in costs.pairs:
        if isinstance(step, Comm):
            of_layer[step.layer] += int(cost.sent_bytes)
    of_step = [(int(cost.messages), int(cost.sent_bytes)) for cost in costs.prices]
    return RankTraffic(int(costs.communication_bytes), of_layer, of_step)


def _step(machine: Machine, costs: Costs, traffic: RankTraffic, index: int) -> StepCost:
    step, cost, span = costs.schedule.steps[index], costs.prices[index], costs.timeline.spans[index]
    seconds, is_comm = float(cost.seconds), isinstance(step, Comm)
    messages, sent_bytes = traffic.of_step[index]
    return StepCost(index=index, label=step.label, layer=step.layer, phase=step.phase.value,
                    is_comm=is_comm, seconds=seconds,
                    exposed_s=float(costs.timeline.waits_s[index]) if is_comm else seconds,
                    messages=messages, sent_bytes=sent_bytes, part=step.part, stage=step.stage,
                    start_s=float(span.start_s), end_s=float(span.end_s),
                    stream=machine.levels[int(cost.level)].name if is_comm else span.stream)


def _layers(network: Network, plan: Plan, costs: Costs, traffic: RankTraffic,
            steps: tuple[StepCost, ...], memory: dict[str, Memory]) -> tuple[LayerCost, ...]:
    comm_s = {layer.name: 0.0 for layer in network.layers[1:]}
    for s in steps:
        if s.is_comm:
            comm_s[s.layer] += s.seconds
    out, compute_s = [], costs.seconds_of_layers()
    for name, communication_s in comm_s.items():
        config = plan.configs[name]
        out.append(LayerCost(
            name=name, config={a: int(getattr(config, a)) for a in ("n", "c", "h", "w", "d", "k")},
            placement="outer" if config.outer else "inner", first_rank=int(config.first),
            ranks=int(config.ranks), compute_s=float(compute_s[name]),
            communication_s=communication_s, communication_bytes=traffic.of_layer.get(name, 0),
            memory_bytes=int(memory[name].total_bytes),
        ))
    return tuple(out)
