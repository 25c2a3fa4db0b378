"""Bounds of the memory of the largest rank: from above, for every case of a family of plans, every
array in a place of its own; from below, what a rank needs between its passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace

import numpy as np

from hpcpar.cost.memory.memory import (
    NOTHING,
    Memory,
    MovedBytes,
    OfRank,
    edge_memory,
    kept_bytes,
    layer_memory,
    message_bytes,
    weights_memory,
)
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import needed
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.schedule.aliasing import reads_input
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import firsts, in_flight


def memory_bound(network: Network, plan: Plan, out: Outline, moved_bytes: MovedBytes, *,
                 training: bool = True) -> Memory:
    """At least the memory of the largest rank: the largest boxes of all layers, as if they met on
    one rank and were all alive at once; messages only while they are in flight.
    """
    starts = firsts(network, plan)
    wire = _in_flight(out, plan, moved_bytes)
    whole: Memory | None = None
    for stage, first in enumerate(starts):
        layers = [layer for layer in network.layers
                  if len(starts) == 1 or plan.configs[layer.name].first == first]
        held = _stage(network, plan, out, layers, training)
        held = held.flying(in_flight(plan.order, len(starts), stage, plan.microbatches))
        whole = held if whole is None else _largest(whole, held)
    assert whole is not None
    return replace(whole, wire_bytes=wire)


def memory_floor(network: Network, plan: Plan, *, training: bool = True) -> Memory:
    """At most the memory of the largest rank, of a single plan: the last rank's weights, and what
    its layers with weights read again, all alive when a backward pass begins.
    """
    boxes, samples = OfRank(int(plan.ranks) - 1), plan.samples_of_a_pass
    updates = plan.synchronisation is not Synchronisation.SERVER
    held = sum((weights_memory(network, plan, layer, boxes, training, updates)
                for layer in network.weighted), NOTHING)
    if not training or plan.recompute or plan.fc_passes > 1:
        return held
    inputs: dict[str, Ints] = defaultdict(int)  # layers that read one tensor may share its array
    kept: Ints = 0
    for layer in network.weighted:
        kept += kept_bytes(network, plan, layer, samples, boxes)
        if reads_input(layer):
            need = needed(network, layer, plan.configs[layer.name], samples)
            inputs[layer.inputs[0]] = max(inputs[layer.inputs[0]], boxes.items(need))
    return held + Memory(0, 0, sum(inputs.values()) * plan.item_bytes, 0, kept, 0)


def _stage(network: Network, plan: Plan, out: Outline, layers: list[Layer],
           training: bool) -> Memory:
    """All arrays of some layers, and of the edges to and from them; alike ones once."""
    names = {layer.name for layer in layers}
    edges = out.edges
    samples = plan.samples_of_a_pass
    known: dict[object, Memory] = {}
    held = NOTHING
    for layer in layers:
        key: object = ("layer", edges.key(layer, samples), len(network.consumers[layer.name]) > 1,
               layer.name in network.trained)
        if key not in known:
            known[key] = layer_memory(network, plan, layer, training)
        held = held + known[key]
    for e in _edges_of(network, plan, out):
        if e.consumer.name in names or e.producer.name in names:
            key = ("edge", e.key, _aliasing(network, e))
            if key not in known:
                found = edge_memory(network, plan, e)
                known[key] = found if training else replace(found, gradients_bytes=0)
            held = held + known[key]
    return held


def _edges_of(network: Network, plan: Plan, out: Outline) -> Iterable[Edge]:
    for layer in network.layers:
        yield from out.edges.into(layer, plan.samples_of_a_pass)


def _aliasing(network: Network, e: Edge) -> tuple[object, ...]:
    """Everything that the memory of an edge depends on besides shapes and configurations."""
    readers = network.consumers[e.producer.name]
    return (type(e.producer), len(readers) > 1, readers[-1] == e.consumer.name,
            e.consumer.inputs.index(e.producer.name) == e.which, e.producer.name in network.trained)


def _in_flight(out: Outline, plan: Plan, moved_bytes: MovedBytes) -> Ints:
    """The most bytes of messages in flight at once, in a pass, and all of all micro-batches between
    stages: a sender may keep its messages to the end.
    """
    born: dict[int, Ints] = defaultdict(int)
    gone: dict[int, Ints] = defaultdict(int)
    known: dict[object, Ints] = {}
    for i, step in enumerate(out.steps):
        if isinstance(step, Move):
            key = (step.key, step.phase)
            if key not in known:
                known[key] = message_bytes(step, moved_bytes)
            if _between(step):
                born[0] = born[0] + known[key] * plan.microbatches
                continue
            born[i] = born[i] + known[key]
            end = max(step.needed_by, i + 1)
            gone[end] = gone[end] + known[key]
    now: Ints = 0
    most: Ints = 0
    for at in sorted({*born, *gone}):
        now = now - gone.get(at, 0) + born.get(at, 0)
        most = np.maximum(most, now)
    return most


def _between(step: Move) -> bool:
    return bool(np.any(np.not_equal(step.destination.config.first, step.source.config.first)))


def _largest(a: Memory, b: Memory) -> Memory:
    """A memory of at least the size of two others."""
    each = asdict(b)
    return Memory(**{name: np.maximum(value, each[name]) for name, value in asdict(a).items()})
