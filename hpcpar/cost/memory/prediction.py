"""The memory of the largest rank, from the same memory plan that the executor allocates."""

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
    MovedBytes,
    kept_bytes,
    message_bytes,
    weights_memory,
)
from hpcpar.cost.memory.ranks import EXACT_RANKS, large_ranks
from hpcpar.network.graph import Network
from hpcpar.plan.boxes import items, local, shape
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.lower import in_order
from hpcpar.schedule.memory_plan.allocation import MemoryPlan, plan_memory
from hpcpar.schedule.memory_plan.packing import peak
from hpcpar.schedule.memory_plan.views import Buffer, View
from hpcpar.schedule.memory_plan.weights import weight_roles
from hpcpar.schedule.messages import make_exchange
from hpcpar.schedule.overlap import Outline
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Comm, Phase, Role, Schedule, TensorRef
from hpcpar.schedule.wire import landing_slots, wire

#: Plans with more steps are analyzed with fewer micro-batches.
MOST_STEPS = 10_000


def total(layers: Mapping[str, Memory]) -> Memory:
    """The memory of all layers."""
    return sum(layers.values(), NOTHING)


def rank_memories(network: Network, plan: Plan, out: Outline, schedule: Schedule,
                  moved_bytes: MovedBytes, *, training: bool = True
                  ) -> Iterator[dict[str, Memory]]:
    """The memory of the candidates for the largest rank, by layer; the most likely rank first.

    On more than `EXACT_RANKS` ranks, or with more than `MOST_STEPS` steps, the memory is an upper
    bound: every step has the messages of its busiest rank, every micro-batch the largest size.

    Parameters
    ----------
    out : Outline
        The outline of the largest micro-batch; `moved_bytes` has its movements.
    """
    bound = {(s.phase, s.layer, s.tensor): int(message_bytes(s, moved_bytes))
             for s in out.steps if isinstance(s, Comm)
             } if int(plan.ranks) > EXACT_RANKS else {}
    plans = [plan] if len(schedule.steps) <= MOST_STEPS else _shortened(network, plan)
    passes = [_Passes(network, short, out, schedule if short is plan else
                      in_order(short, [out] * short.microbatches, training), bound, training)
              for short in plans]
    missing = plan.microbatches - passes[-1].plan.microbatches
    for rank in large_ranks(network, plan, out.edges):
        *before, last = (p.of(rank) for p in passes)
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


class _Passes:
    """The schedule of a plan, from which the memory of any rank follows.

    Parameters
    ----------
    bound : dict
        (phase, layer, tensor) -> upper bound of the message bytes; empty to count each rank's.
    """

    def __init__(self, network: Network, plan: Plan, out: Outline, schedule: Schedule,
                 bound: Mapping[tuple[Phase, str, TensorRef], int], training: bool) -> None:
        self.network, self.plan, self.schedule, self.training = network, plan, schedule, training
        self.bound, self.edges = bound, out.edges if plan is out.plan else Edges(network, plan)

    def of(self, rank: int) -> dict[str, Memory]:
        """The memory of a rank, by layer."""
        planned = plan_memory(self.network, self.plan, rank, [self.schedule],
                              training=self.training, edges=self.edges)
        layers = self._constants(planned)
        item_bytes = self.plan.item_bytes
        for buffer in planned.peak():
            size = buffer.items * item_bytes
            layers[buffer.layer] += (Memory(gradients_bytes=size) if buffer.gradient else
                                     Memory(activations_bytes=size))
        for step, size in self._messages(planned):
            layers[step.layer] += Memory(wire_bytes=size)
        images = self.network.layers[0].name  # they count for the first layer that reads them
        layers[self.network.consumers[images][0]] += layers.pop(images)
        return layers

    def _constants(self, planned: MemoryPlan) -> dict[str, Memory]:
        """The memory that is allocated all the time."""
        network, plan, rank = self.network, self.plan, planned.rank
        roles = weight_roles(network, plan, self.schedule if self.training else None, rank)
        layers = {layer.name: NOTHING for layer in network.layers}
        for layer in network.stateful:
            updates = roles[layer.name].updates
            layers[layer.name] += weights_memory(network, plan, layer, rank, self.training, updates)
        seen: set[tuple[str, int, int]] = set()
        for each in planned.passes.all:
            for name in each.blocks:
                key = (name, each.slots.of_layer(name), each.samples)
                if key not in seen:
                    seen.add(key)
                    kept = kept_bytes(network, plan, network.by_name[name], each.samples, rank,
                                      self.training)
                    layers[name] += Memory(kept_bytes=kept)
        return layers

    def _messages(self, planned: MemoryPlan) -> list[tuple[Comm, int]]:
        """The messages in flight when their total size peaks, with their bytes."""
        (steps,) = planned.programs
        flights = []
        known: dict[Comm, int] = {}  # the passes of a micro-batch or FC pass are alike
        for i in steps.until:
            step = steps.schedule.steps[i]
            assert isinstance(step, Comm)
            alike = replace(step, index=0, needed_by=0, part=0)
            if alike not in known:
                known[alike] = self._message_bytes(step, planned)
            flights.append((step, known[alike]))
        alive = planned.moments([[planned.in_flight(0, i)] for i in steps.until])
        _, moment = peak([size for _, size in flights], alive)
        return [flight for flight, bits in zip(flights, alive, strict=True) if bits >> moment & 1]

    def _message_bytes(self, step: Comm, planned: MemoryPlan) -> int:
        """Bytes of a rank's messages in a step, including buffers for summands."""
        if self.bound:
            return self.bound[step.phase, step.layer, step.tensor]
        if not step.concerns(planned.rank):
            return 0
        ex = make_exchange(step, planned.rank)
        own = wire(step, ex, planned.rank, *_moved(step, planned), on_host=True)
        return (own.items + sum(landing_slots(step, ex).values())) * step.item_bytes


def _moved(step: Comm, planned: MemoryPlan) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The executor's arrays before and after a step, but without memory."""
    if step.tensor.role in (Role.INPUT, Role.OUTPUT):
        before, after = planned.tensors.moved(step)
        return _array(before), _array(after)
    boxes = step.source_box(planned.rank), step.destination_box(planned.rank)
    whole = max(boxes, key=items)  # a shard lies inside the box of the weights
    array = _array(View(Buffer("", False, shape(whole)), shape(whole)))
    first, last = (array[local(box, whole)] if items(box) else array[:0] for box in boxes)
    return first, last


def _array(view: View) -> NDArray[np.float64]:
    whole = view.shape if view.buffer is None else view.buffer.shape
    strides = [8 * math.prod(whole[i + 1:]) for i in range(len(whole))]
    return view.of(as_strided(np.empty(1), whole, strides))
