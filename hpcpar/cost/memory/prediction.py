"""Decides the memory of the largest rank, by the memory plan that the executor allocates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hpcpar.cost.memory.memory import (
    NOTHING,
    Memory,
    kept_bytes,
    message_bytes,
    weights_memory,
)
from hpcpar.cost.memory.ranks import EXACT_RANKS, large_ranks
from hpcpar.cost.price_family import PricedSteps
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import items, local, shape
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.schedule.lower import in_order
from hpcpar.schedule.memory_plan.allocation import MemoryPlan, plan_memory
from hpcpar.schedule.memory_plan.packing import moments, peak
from hpcpar.schedule.memory_plan.passes import PassPlans
from hpcpar.schedule.memory_plan.views import Buffer, View
from hpcpar.schedule.memory_plan.weights import weight_roles
from hpcpar.schedule.messages import make_exchange
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Comm, Phase, Role, TensorRef
from hpcpar.schedule.wire import landing_slots, wire

#: Plans with more steps are analyzed with fewer micro-batches.
MOST_STEPS = 10_000
#: (phase, label, tensor) -> upper bound of a movement's message bytes; empty to count each rank's.
MessageBytes = Mapping[tuple[Phase, str, TensorRef], int]


def total(layers: Mapping[str, Memory]) -> Memory:
    """The memory of all layers."""
    return sum(layers.values(), NOTHING)


def rank_memories(network: Network, plan: Plan, priced: PricedSteps, *, training: bool = True
                  ) -> Iterator[dict[str, Memory]]:
    """The memory of the candidates for the largest rank, by layer; the most likely rank first.

    On more than `EXACT_RANKS` ranks, or with more than `MOST_STEPS` steps, the memory is an upper
    bound: every step has the messages of its busiest rank, every micro-batch the largest size.
    """
    out, schedule = priced.out, priced.schedule
    bound = {(s.phase, s.label, s.tensor): int(message_bytes(s, priced.moved_bytes))
             for s in out.steps if isinstance(s, Comm)
             } if int(plan.ranks) > EXACT_RANKS else {}
    plans = [plan] if len(schedule.steps) <= MOST_STEPS else _shortened(network, plan)
    schedules = [schedule if short is plan else
                 in_order(short, [out] * short.microbatches, training) for short in plans]
    missing = plan.microbatches - plans[-1].microbatches
    for rank in large_ranks(network, plan, out.edges):
        *before, last = (
            _by_layer(plan_memory(network, short, rank, [steps], training=training,
                                  edges=out.edges), bound)
            for short, steps in zip(plans, schedules, strict=True))
        yield {name: memory.grown(before[0][name], missing)
               for name, memory in last.items()} if before else last


def _shortened(network: Network, plan: Plan) -> list[Plan]:
    """The plan with fewer micro-batches.

    1F1B needs the same memory with one micro-batch more than stages. GPipe's memory grows linearly,
    so two plans with consecutive numbers of micro-batches determine it.
    """
    stages = len(firsts(network, plan))
    counts = [2, 3] if plan.order is PipelineOrder.GPIPE else [stages + 1]
    if plan.microbatches <= counts[-1]:
        return [plan]
    samples = int(plan.samples_of_a_pass)
    return [replace(plan, microbatches=n, batch=n * samples) for n in counts]


def _by_layer(planned: MemoryPlan, bound: MessageBytes) -> dict[str, Memory]:
    """The memory of a rank with one program, by layer."""
    network, item_bytes = planned.passes.network, planned.passes.plan.item_bytes
    layers = _constants(planned)
    for buffer in planned.peak():
        size = buffer.items * item_bytes
        layers[buffer.layer] += (Memory(gradients_bytes=size) if buffer.gradient else
                                 Memory(activations_bytes=size))
    for step, size in _messages(planned, bound):
        layers[step.layer] += Memory(wire_bytes=size)
    images = network.layers[0].name  # they count for the first layer that reads them
    layers[network.consumers[images][0]] += layers.pop(images)
    return layers


def _constants(planned: MemoryPlan) -> dict[str, Memory]:
    """The memory that is allocated all the time."""
    passes, (steps,) = planned.passes, planned.programs
    network, plan, rank, training = passes.network, passes.plan, passes.rank, passes.training
    _, updated = weight_roles(network, plan, steps.schedule if training else None, rank)
    layers = {layer.name: NOTHING for layer in network.layers}
    for layer in network.stateful:
        layers[layer.name] += weights_memory(network, plan, layer, rank, training,
                                             layer.name in updated)
    kept = {(name, each.slots.of_layer(name), each.samples)
            for each in passes.all for name in each.blocks}
    for name, _, samples in kept:
        layers[name] += Memory(kept_bytes=kept_bytes(network, plan, network.by_name[name], samples,
                                                     rank, training))
    return layers


def _messages(planned: MemoryPlan, bound: MessageBytes) -> list[tuple[Comm, int]]:
    """The messages in flight when their total size peaks, with their bytes."""
    (steps,) = planned.programs
    flights = []
    known: dict[Comm, int] = {}  # the passes of a micro-batch or FC pass are alike
    for i in steps.until:
        step = steps.schedule.steps[i]
        assert isinstance(step, Comm)
        alike = replace(step, index=0, needed_by=0, part=0)
        if alike not in known:
            known[alike] = (bound[step.phase, step.label, step.tensor] if bound else
                            _message_bytes(step, planned.passes))
        flights.append((step, known[alike]))
    alive = [moments([steps.in_flight(i)]) for i in steps.until]
    _, moment = peak([size for _, size in flights], alive)
    return [flight for flight, bits in zip(flights, alive, strict=True) if bits >> moment & 1]


def _message_bytes(step: Comm, passes: PassPlans) -> int:
    """Bytes of a rank's messages in a step, including buffers for summands."""
    if not step.concerns(passes.rank):
        return 0
    ex = make_exchange(step, passes.rank)
    own = wire(step, ex, passes.rank, *_moved(step, passes), on_host=True)
    return (own.items + sum(landing_slots(step, ex).values())) * step.item_bytes


def _moved(step: Comm, passes: PassPlans) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The executor's arrays before and after a step, but without memory."""
    if step.tensor.role in (Role.INPUT, Role.OUTPUT):
        before, after = passes.moved(step)
        return _array(before), _array(after)
    boxes = step.source_box(passes.rank), step.destination_box(passes.rank)
    whole = max(boxes, key=items)  # a shard lies inside the box of the weights
    array = _array(View(Buffer("", False, shape(whole)), shape(whole)))
    first, last = (array[local(box, whole)] if items(box) else array[:0] for box in boxes)
    return first, last


def _array(view: View) -> NDArray[np.float64]:
    whole = view.shape if view.buffer is None else view.buffer.shape
    strides = [8 * math.prod(whole[i + 1:]) for i in range(len(whole))]
    return view.of(as_strided(np.empty(1), whole, strides))
