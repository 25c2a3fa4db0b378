"""Bounds of the memory of the largest rank: from above, for every case of a family of plans, all
activations in places of their own; from below, what a rank needs between its passes.
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
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import firsts, in_flight


def memory_upper_bound(network: Network, plan: Plan, out: Outline, moved_bytes: MovedBytes, *,
                 training: bool = True) -> Memory:
    """Upper bound: the largest rank needs at most this much.

    The largest boxes of all layers meet on one rank; activations are all alive at once, gradients
    and messages while they are needed.
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


def memory_lower_bound(network: Network, plan: Plan, *, training: bool = True) -> Memory:
    """Lower bound: the largest rank of a single plan needs at least this much.

    It is the last rank's weights, and what its layers with weights read again, all alive when a
    backward pass begins.
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
        if "input" in layer.backward_reads:
            need = needed(network, layer, plan.configs[layer.name], samples)
            inputs[layer.inputs[0]] = max(inputs[layer.inputs[0]], boxes.items(need))
    return held + Memory(0, 0, sum(inputs.values()) * plan.item_bytes, 0, kept, 0)


def _stage(network: Network, plan: Plan, out: Outline, layers: list[Layer],
           training: bool) -> Memory:
    """All arrays of some layers, and of the edges to and from them, gradients while they are alive;
    alike ones are worked out once.
    """
    names = {layer.name for layer in layers}
    place, until = _places(network)
    edges = out.edges
    samples = plan.samples_of_a_pass
    known: dict[object, Memory] = {}
    held, gradients = NOTHING, _Alive()
    for layer in layers:
        key: object = ("layer", edges.key(layer, samples), len(network.consumers[layer.name]) > 1,
               layer.name in network.trained)
        if key not in known:
            known[key] = layer_memory(network, plan, layer, training)
        held = held + known[key]
        readers = network.consumers[layer.name]
        last = max(place[name] for name in (layer.name, *readers))
        gradients.add(known[key].gradients_bytes, until[layer.name], last)
    for e in _edges_of(network, plan, out):
        if e.consumer.name in names or e.producer.name in names:
            key = ("edge", e.key, _aliasing(network, e))
            if key not in known:
                found = edge_memory(network, plan, e)
                known[key] = found if training else replace(found, gradients_bytes=0)
            held = held + known[key]
            gradients.add(known[key].gradients_bytes, until[e.producer.name],
                          place[e.consumer.name])
    return replace(held, gradients_bytes=gradients.most_bytes)


def _places(network: Network) -> tuple[dict[str, int], dict[str, int]]:
    """The place of every layer, and the one at whose backward pass the array of its gradient is
    free: a layer before it where the array is handed on.
    """
    place: dict[str, int] = {}
    until: dict[str, int] = {}
    for i, layer in enumerate(network.layers):
        place[layer.name] = i
        before = [until[name] for name in layer.inputs] if layer.in_place else []
        until[layer.name] = min(before, default=i)
    return place, until


class _Alive:
    """The most bytes that are alive at once."""

    def __init__(self) -> None:
        self._born: dict[int, Ints] = defaultdict(int)
        self._gone: dict[int, Ints] = defaultdict(int)

    def add(self, size_bytes: Ints, first: int, last: int) -> None:
        """Something that is alive from one time to another, both included."""
        self._born[first] = self._born[first] + size_bytes
        self._gone[last + 1] = self._gone[last + 1] + size_bytes

    @property
    def most_bytes(self) -> Ints:
        now: Ints = 0
        most: Ints = 0
        for at in sorted({*self._born, *self._gone}):
            now = now - self._gone.get(at, 0) + self._born.get(at, 0)
            most = np.maximum(most, now)
        return most


def _edges_of(network: Network, plan: Plan, out: Outline) -> Iterable[Edge]:
    for layer in network.layers:
        yield from out.edges.into(layer, plan.samples_of_a_pass)


def _aliasing(network: Network, e: Edge) -> tuple[object, ...]:
    """Everything that the memory of an edge depends on besides shapes and configurations."""
    readers = network.consumers[e.producer.name]
    return (type(e.producer), len(readers) > 1, readers[-1] == e.consumer.name,
            e.consumer.inputs.index(e.producer.name) == e.which, e.producer.name in network.trained)


def _in_flight(out: Outline, plan: Plan, moved_bytes: MovedBytes) -> Ints:
    """The most bytes of messages in flight at once, in a pass. Who only sends, as between stages,
    may keep the messages of all micro-batches to the end.
    """
    alive = _Alive()
    known: dict[object, Ints] = {}
    for i, step in enumerate(out.steps):
        if isinstance(step, Move):
            key = (step.key, step.phase)
            if key not in known:
                known[key] = message_bytes(step, moved_bytes)
            if _only_sends(step):
                alive.add(known[key] * plan.microbatches, 0, len(out.steps))
            else:
                alive.add(known[key], i, max(step.needed_by - 1, i))
    return alive.most_bytes


def _only_sends(step: Move) -> bool:
    """True where some ranks send and receive nothing, in some cases."""
    here, there = step.destination.config, step.source.config
    return bool(np.any(np.not_equal(here.first, there.first) | np.less(here.ranks, there.ranks)))


def _largest(a: Memory, b: Memory) -> Memory:
    """A memory of at least the size of two others."""
    each = asdict(b)
    return Memory(**{name: np.maximum(value, each[name]) for name, value in asdict(a).items()})
