"""Bounds of the memory of the largest rank.

The upper bound covers all plans of a family and shares no memory between activations. The lower
bound is the memory between a forward and a backward pass.
"""

from __future__ import annotations

from collections import defaultdict
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
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.overlap import Outline
from hpcpar.schedule.pipeline_order import firsts, in_flight
from hpcpar.schedule.steps import Comm


def memory_upper_bound(network: Network, plan: Plan, out: Outline, moved_bytes: MovedBytes, *,
                       training: bool = True) -> Memory:
    """Upper bound: the largest rank needs at most this much.

    One rank has the largest boxes of all layers. All activations are alive at once; gradients and
    messages only while they are needed.
    """
    starts = firsts(network, plan)
    wire = _in_flight(out, plan, moved_bytes)
    whole: Memory | None = None
    for stage, first in enumerate(starts):
        layers = [layer for layer in network.layers
                  if len(starts) == 1 or plan.configs[layer.name].first == first]
        memory = _stage(network, plan, out, layers, training)
        memory = memory.flying(in_flight(plan.order, len(starts), stage, plan.microbatches))
        whole = memory if whole is None else _largest(whole, memory)
    assert whole is not None
    return replace(whole, wire_bytes=wire)


def memory_lower_bound(network: Network, plan: Plan, *, training: bool = True) -> Memory:
    """Lower bound: the largest rank of a single plan needs at least this much.

    It is the last rank's memory for weights, and for the inputs that its layers with weights read
    again; all are alive when a backward pass starts.
    """
    boxes, samples = OfRank(int(plan.ranks) - 1), plan.samples_of_a_pass
    updates = plan.synchronization is not Synchronization.SERVER
    weights = sum((weights_memory(network, plan, layer, boxes, training, updates)
                   for layer in network.weighted), NOTHING)
    if not training or plan.recompute or plan.fc_passes > 1:
        return weights
    inputs: dict[str, Ints] = defaultdict(int)  # layers that read one tensor may share its array
    kept: Ints = 0
    for layer in filter(lambda layer: layer.learns, network.weighted):
        kept += kept_bytes(network, plan, layer, samples, boxes)
        if "input" in layer.backward_reads:
            need = needed(network, layer, plan.configs[layer.name], samples)
            inputs[layer.inputs[0]] = max(inputs[layer.inputs[0]], boxes.items(need))
    return weights + Memory(0, 0, sum(inputs.values()) * plan.item_bytes, 0, kept, 0)


def _stage(network: Network, plan: Plan, out: Outline, layers: list[Layer],
           training: bool) -> Memory:
    """All arrays of these layers and of their edges; gradients only while they are alive."""
    names = {layer.name for layer in layers}
    place, until = _places(network)
    edges = out.edges
    samples = plan.samples_of_a_pass
    known: dict[object, Memory] = {}
    memory, gradients = NOTHING, _Alive()
    for layer in layers:
        key: object = ("layer", edges.key(layer, samples), len(network.consumers[layer.name]) > 1,
                       layer.name in network.trained)
        if key not in known:
            known[key] = layer_memory(network, plan, layer, training)
        memory = memory + known[key]
        readers = network.consumers[layer.name]
        last = max(place[name] for name in (layer.name, *readers))
        gradients.add(known[key].gradients_bytes, until[layer.name], last)
    for e in (e for layer in network.layers for e in edges.into(layer, samples)):
        if e.consumer.name in names or e.producer.name in names:
            key = ("edge", e.key, _aliasing(network, e))
            if key not in known:
                edge = edge_memory(network, plan, e)
                known[key] = edge if training else replace(edge, gradients_bytes=0)
            memory = memory + known[key]
            gradients.add(known[key].gradients_bytes, until[e.producer.name],
                          place[e.consumer.name])
    return replace(memory, gradients_bytes=gradients.most_bytes)


def _places(network: Network) -> tuple[dict[str, int], dict[str, int]]:
    """The place of each layer, and the place whose backward pass frees the array of its gradient.

    The latter is an earlier layer's if the layer passes the array on.
    """
    place: dict[str, int] = {}
    until: dict[str, int] = {}
    for i, layer in enumerate(network.layers):
        place[layer.name] = i
        before = [until[name] for name in layer.inputs] if layer.in_place else []
        until[layer.name] = min(before, default=i)
    return place, until


class _Alive:
    """Finds the most bytes that are alive at once."""

    def __init__(self) -> None:
        self._born: dict[int, Ints] = defaultdict(int)
        self._gone: dict[int, Ints] = defaultdict(int)

    def add(self, size_bytes: Ints, first: int, last: int) -> None:
        """Add an array that is alive from time `first` through time `last`."""
        self._born[first] = self._born[first] + size_bytes
        self._gone[last + 1] = self._gone[last + 1] + size_bytes

    @property
    def most_bytes(self) -> Ints:
        alive: Ints = 0
        most: Ints = 0
        for time in sorted({*self._born, *self._gone}):
            alive = alive - self._gone.get(time, 0) + self._born.get(time, 0)
            most = np.maximum(most, alive)
        return most


def _aliasing(network: Network, e: Edge) -> tuple[object, ...]:
    """The facts besides shapes and configurations that determine the memory of an edge."""
    readers = network.consumers[e.producer.name]
    return (type(e.producer), len(readers) > 1, readers[-1] == e.consumer.name,
            e.consumer.inputs.index(e.producer.name) == e.which, e.producer.name in network.trained)


def _in_flight(out: Outline, plan: Plan, moved_bytes: MovedBytes) -> Ints:
    """The most bytes of messages in flight at once, in a pass.

    A rank that only sends, as between stages, may keep the messages of all micro-batches to the
    end.
    """
    alive = _Alive()
    known: dict[object, Ints] = {}
    for i, step in enumerate(out.steps):
        if isinstance(step, Comm):
            if step.key not in known:
                known[step.key] = message_bytes(step, moved_bytes)
            if _only_sends(step):
                alive.add(known[step.key] * plan.microbatches, 0, len(out.steps))
            else:
                alive.add(known[step.key], i, max(step.needed_by - 1, i))
    return alive.most_bytes


def _only_sends(step: Comm) -> bool:
    """True if some ranks send and receive nothing, in any plan of the family."""
    to, source = step.destination.config, step.source.config
    return bool(np.any(np.not_equal(to.first, source.first) | np.less(to.ranks, source.ranks)))


def _largest(a: Memory, b: Memory) -> Memory:
    """The larger of two memories, for each use."""
    other = asdict(b)
    return Memory(**{use: np.maximum(value, other[use]) for use, value in asdict(a).items()})
