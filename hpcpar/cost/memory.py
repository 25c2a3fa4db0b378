"""Memory of the rank with the largest boxes, by what it is used for: the arrays that the executor allocates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, BatchNorm, Dropout, Layer, Loss, MaxPool2d, MaxPool3d
from hpcpar.plan.layout import Layout, owned, parameters, partial, shards
from hpcpar.plan.plan import OPTIMIZERS, Plan
from hpcpar.schedule.builder import Move, Outline
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.sharing import begins_sum, in_place, passes_gradient
from hpcpar.schedule.stages import firsts, in_flight
from hpcpar.schedule.steps import CODES, Kind

#: Bytes of a pooling window's index.
INDEX_BYTES = 2
#: Of batch normalisation, for each channel: two sums and their gradients, mean and deviation, as float64.
MOMENTS_BYTES = 48


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes
    ----------
    weights_bytes : int
        Weights and their gradients, and running statistics.
    optimizer_bytes : int
        The optimiser's state: velocities, or two moments.
    activations_bytes : int
        Outputs of layers, and inputs that are not views of them (gathered, or with a halo).
    gradients_bytes : int
        Gradients of activations.
    kept_bytes : int
        What layers keep for the backward pass: indices of maxima, normalisation scales, masks.
    wire_bytes : int
        Communication buffers.
    """

    weights_bytes: Any
    optimizer_bytes: Any
    activations_bytes: Any
    gradients_bytes: Any
    kept_bytes: Any
    wire_bytes: Any

    @property
    def total_bytes(self) -> Any:
        return (self.weights_bytes + self.optimizer_bytes + self.activations_bytes + self.gradients_bytes + self.kept_bytes
                + self.wire_bytes)

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def flying(self, microbatches: int) -> Memory:
        """With what every micro-batch in flight keeps for its backward pass; they share gradients and the wire."""
        if microbatches == 1:
            return self
        return replace(self, activations_bytes=self.activations_bytes * microbatches, kept_bytes=self.kept_bytes * microbatches)

    def scaled(self, gamma: float) -> Memory:
        """With activations, their gradients and what is kept times `gamma`: ParaDL's factor for what a framework reuses."""
        values = asdict(self)
        for name in ("activations_bytes", "gradients_bytes", "kept_bytes"):
            values[name] = np.ceil(values[name] * gamma).astype(np.int64)
        return Memory(**values)


NOTHING = Memory(0, 0, 0, 0, 0, 0)


def memory(network: Network, plan: Plan, out: Outline, moved_bytes: dict[Any, Any], *, training: bool = True) -> Memory:
    """Memory that the largest rank needs: tensors live for the whole run, as the executor keeps them.

    Parameters
    ----------
    moved_bytes : dict
        Of each movement from rank to rank, by its key: what the busiest rank sends, and what goes through the buffers of one at most.
    """
    starts = firsts(network, plan)
    everything = {layer.name for layer in network.layers}
    # stages hold their own layers, and activations of the micro-batches in flight
    stages = [{name for name in everything if len(starts) == 1 or plan.configs[name].first == first} for first in starts]
    each = [
        _of(network, plan, out, moved_bytes, names, training, in_flight(plan.order, len(stages), s, plan.microbatches))
        for s, names in enumerate(stages)
    ]
    return each[0] if len(each) == 1 else each[int(np.argmax([m.total_bytes for m in each]))]


def _of(
    network: Network, plan: Plan, out: Outline, moved_bytes: dict[Any, Any], names: set[str], training: bool, flying: int
) -> Memory:
    total = NOTHING
    alive: Any = 0
    for layer in network.layers:
        if layer.name not in names:
            continue
        total = total + layer_memory(network, plan, layer, training)
        if not training:
            alive = np.maximum(alive, _alive(network, plan, layer, out))
            continue
        for e in out.edges.into(layer, plan.samples_of_a_pass):
            total = total + (edge_memory(network, plan, e) if e.producer.name in names else _half(network, plan, e, e.needed))
        for name in network.consumers[layer.name]:
            if name not in names and len(network.consumers[layer.name]) == 1:
                (e,) = (e for e in out.edges.into(network.by_name[name], plan.samples_of_a_pass) if e.producer is layer)
                total = total + _half(network, plan, e, e.owned)
    wire = sum((_wire(step, moved_bytes, names, plan) for step in _distinct(out)), np.int64(0))
    return replace(total, activations_bytes=total.activations_bytes + alive * plan.item_bytes, wire_bytes=wire).flying(flying)


def _half(network: Network, plan: Plan, e: Edge, box: Layout) -> Memory:
    """One end of an edge whose other end is on other ranks."""
    size = box.largest_items * plan.item_bytes
    return Memory(0, 0, size, size if e.producer.name in network.trained else 0, 0, 0)


def _wire(step: Move, moved_bytes: dict[Any, Any], names: set[str], plan: Plan) -> Any:
    """Wire buffers of a movement in a stage of a pipeline: from stage to stage, several micro-batches may be on their way."""
    here, there = step.wanter.config.first, step.holder.config.first
    if np.all(np.equal(here, there)):
        return wire_bytes(step, moved_bytes) if step.layer in names else 0
    inside = any(plan.configs[name].first in (here, there) for name in names)
    return moved_bytes[step.key][0] * plan.microbatches if inside else 0


def layer_memory(network: Network, plan: Plan, layer: Layer, training: bool = True) -> Memory:
    """What a layer's own configuration decides: weights, state, what is kept, and outputs that several layers read."""
    config, size = plan.configs[layer.name], plan.item_bytes
    y = owned(network, layer, config, plan.samples_of_a_pass).largest_items
    weights: Any = 0
    state: Any = 0
    kept: Any = 0
    if layer.has_weights:
        count = parameters(network, layer, config).largest_items
        weights = (1 + training) * count
        if training:
            part = shards(network, layer, config).largest_items if plan.synchronisation == "sharded" else count
            state = OPTIMIZERS[plan.optimizer] * part
    if training and isinstance(layer, MaxPool2d | MaxPool3d):
        kept = INDEX_BYTES * y
    elif training and isinstance(layer, LRN | Dropout):
        kept = size * y
    if isinstance(layer, BatchNorm):
        channels = owned(network, layer, config, plan.samples_of_a_pass).largest[1]
        weights, kept = weights + 2 * channels, MOMENTS_BYTES * channels
    if training and plan.microbatches > 1 and layer.has_weights:
        weights = weights + count  # what further micro-batches add is computed aside
    shared = y * size if training and len(network.consumers[layer.name]) > 1 else 0
    activations, gradients = shared, shared if layer.name in network.trained else 0
    if np.any(np.greater(config.k, 1)):
        parts = partial(network, layer, config, plan.samples_of_a_pass).largest_items
        cut = np.greater(config.k, 1)
        activations = activations + np.where(cut, parts, 0) * size
        gradients = gradients + (np.where(cut, parts, 0) * size if training and config.scatter else 0)
    return Memory(weights * size, state * size, activations, gradients, kept, 0)


@dataclass(frozen=True)
class Ends:
    """What decides the memory of an edge: largest boxes, and codes of movements.

    Attributes
    ----------
    need, own, made : int
        Items of what the consumer needs, of what the producer owns, of the consumer's output.
    forward, backward : int
        How the tensor and its gradient move.
    """

    need: Any
    own: Any
    made: Any
    forward: Any
    backward: Any

    @classmethod
    def of(cls, e: Edge, made: Layout) -> Ends:
        """Those of an edge, and of what ranks own of the consumer's output."""
        codes = (np.asarray(pattern.code) for pattern in (e.forward, e.backward))
        return cls(e.needed.largest_items, e.owned.largest_items, made.largest_items, *codes)


def edge_memory(network: Network, plan: Plan, e: Edge, ends: Ends | None = None) -> Memory:
    """What the configurations at both ends of an edge decide: the consumer's input, and the producer's output where it alone reads it.

    Parameters
    ----------
    ends : Ends, optional
        Where they are at hand.
    """
    if ends is None:
        ends = Ends.of(e, owned(network, e.consumer, plan.configs[e.consumer.name], plan.samples_of_a_pass))
    shared = len(network.consumers[e.producer.name]) > 1
    gradients: Any = 0
    if e.producer.name in network.trained:
        gradients = _one_of_many(network, ends, e) if shared else _input_gradients(ends, e.consumer)
    return Memory(0, 0, _inputs(ends, e, shared) * plan.item_bytes, gradients * plan.item_bytes, 0, 0)


def _inputs(ends: Ends, e: Edge, shared: bool) -> Any:
    """Items allocated for the consumer's input and the producer's output (the latter elsewhere where several layers read it)."""
    need, own, code, layer = ends.need, ends.own, ends.forward, e.consumer
    still = code == 0
    if shared:
        return np.where(still, 0, need)
    last = isinstance(layer, Loss)
    reuse = np.equal(need, ends.made) & (not last and in_place(layer, e.producer) and len(layer.inputs) == 1)
    inside = (code != CODES[Kind.REDISTRIBUTE]) & (need >= own)
    moved = np.where(code == CODES[Kind.HALO], np.maximum(need, own), np.where(reuse, 0, need) + np.where(inside, 0, own))
    return np.where(still, np.where(reuse & np.equal(need, own), 0, own), moved)


def _one_of_many(network: Network, ends: Ends, e: Edge) -> Any:
    """Items allocated for the gradient that one of several readers gives: the first goes where the sum is made."""
    need, own, code = ends.need, ends.own, ends.backward
    in_place = (code == 0) | (code == CODES[Kind.ALLREDUCE])
    if begins_sum(network, e.producer, e.consumer, e.which):
        return np.where(in_place & np.equal(need, own), 0, need)
    return need + np.where(in_place, 0, own)


def _input_gradients(ends: Ends, layer: Layer) -> Any:
    """Items allocated for the gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    again = np.equal(need, ends.made) & passes_gradient(layer)
    whole = np.where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    view = (code == CODES[Kind.ALLREDUCE]) | ((code == 0) & (need >= own))
    apart = np.where(code == CODES[Kind.HALO], np.maximum(need, own), np.where(view, whole, whole + own))
    return np.where(part, own, apart)


def _alive(network: Network, plan: Plan, layer: Layer, out: Outline) -> Any:
    """Items alive while a layer is computed in inference: its inputs and its output."""
    edges = out.edges.into(layer, plan.samples_of_a_pass)
    y = owned(network, layer, plan.configs[layer.name], plan.samples_of_a_pass).largest_items
    return y + sum(e.needed.largest_items for e in edges)


def _distinct(out: Outline) -> Iterable[Move]:
    """Movements with a wire buffer of their own: turns use the same again."""
    found: dict[tuple[str, Any], Move] = {}
    for step in out.steps:
        if isinstance(step, Move):
            found.setdefault((step.tensor, step.key), step)
    return found.values()


def wire_bytes(step: Move, moved_bytes: dict[Any, Any]) -> Any:
    """Wire buffer of a step on the largest rank."""
    group = math.prod(d.size for d in step.pattern.digits)
    code = np.asarray(step.pattern.code)
    return wire_buffer(code, group, step.holder.largest_items, step.wanter.largest_items, step.item_bytes, moved_bytes[step.key][1])


def wire_buffer(code: Any, group: Any, held: Any, wanted: Any, item_bytes: int, through_bytes: Any) -> Any:
    """None for an allreduce, the whole box of a gather, what comes and goes of the rest.

    A server receives everyone's gradients, and keeps what it sends to all.

    Parameters
    ----------
    group : int
        Ranks of a collective.
    held, wanted : int
        Items of the largest boxes before and after.
    through_bytes : int
        Sent and received from rank to rank.
    """
    direct = (code == CODES[Kind.HALO]) | (code == CODES[Kind.REDISTRIBUTE])
    boxes = np.where(code == CODES[Kind.ALLGATHER], wanted, 0)
    boxes = np.where((code == CODES[Kind.REDUCE_SCATTER]) | (code == CODES[Kind.BROADCAST]), held, boxes)
    boxes = np.where(code == CODES[Kind.REDUCE], (group - 1) * held, boxes)
    return np.where(direct, through_bytes, boxes * item_bytes)
