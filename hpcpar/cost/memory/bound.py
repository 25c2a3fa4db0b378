"""Decides how much memory suffices for the largest rank, for all plans of a family at once.

It shares no memory between activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hpcpar.cost.memory.memory import (
    NOTHING,
    Memory,
    MovedBytes,
    edge_memory,
    layer_memory,
    message_bytes,
)
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Ints
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.overlap import Outline
from hpcpar.schedule.pipeline_order import firsts, in_flight
from hpcpar.schedule.steps import Comm

#: Bytes of an array, and the first and last time at which it is alive.
Lived = tuple[Ints, int, int]


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


def _stage(network: Network, plan: Plan, out: Outline, layers: list[Layer],
           training: bool) -> Memory:
    """All arrays of these layers and of their edges; gradients only while they are alive."""
    names = {layer.name for layer in layers}
    place, until = _places(network)
    edges = out.edges
    samples = plan.samples_of_a_pass
    known: dict[object, Memory] = {}
    memory, gradients = NOTHING, list[Lived]()
    for layer in layers:
        key: object = ("layer", edges.key(layer, samples), len(network.consumers[layer.name]) > 1,
                       layer.name in network.trained)
        if key not in known:
            known[key] = layer_memory(network, plan, layer, training)
        memory = memory + known[key]
        readers = network.consumers[layer.name]
        last = max(place[name] for name in (layer.name, *readers))
        gradients.append((known[key].gradients_bytes, until[layer.name], last))
    for e in (e for layer in network.layers for e in edges.into(layer, samples)):
        if e.consumer.name in names or e.producer.name in names:
            key = ("edge", e.key, _aliasing(network, e))
            if key not in known:
                known[key] = edge_memory(network, plan, e, training)
            memory = memory + known[key]
            gradients.append((known[key].gradients_bytes, until[e.producer.name],
                              place[e.consumer.name]))
    return replace(memory, gradients_bytes=_most_bytes(gradients))


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


def _most_bytes(arrays: Iterable[Lived]) -> Ints:
    """The most bytes that are alive at once."""
    change: dict[int, Ints] = defaultdict(int)
    for size_bytes, first, last in arrays:
        change[first] = change[first] + size_bytes
        change[last + 1] = change[last + 1] - size_bytes
    alive: Ints = 0
    most: Ints = 0
    for time in sorted(change):
        alive = alive + change[time]
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
    messages: list[Lived] = []
    known: dict[object, Ints] = {}
    for i, step in enumerate(out.steps):
        if isinstance(step, Comm):
            if step.key not in known:
                known[step.key] = message_bytes(step, moved_bytes)
            if _only_sends(step):
                messages.append((known[step.key] * plan.microbatches, 0, len(out.steps)))
            else:
                messages.append((known[step.key], i, max(step.needed_by - 1, i)))
    return _most_bytes(messages)


def _only_sends(step: Comm) -> bool:
    """True if some ranks send and receive nothing, in any plan of the family."""
    to, source = step.destination.config, step.source.config
    return bool(np.any(np.not_equal(to.first, source.first) | np.less(to.ranks, source.ranks)))


def _largest(a: Memory, b: Memory) -> Memory:
    """The larger of two memories, for each use."""
    return Memory(**{use: np.maximum(size, getattr(b, use)) for use, size in vars(a).items()})
