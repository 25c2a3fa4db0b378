"""Memory of the rank with the largest boxes, by what it is used for: the arrays that the executor allocates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, Dropout, Layer, Loss, MaxPool2d, MaxPool3d
from hpcpar.plan.layout import Layout, owned, parameters, shards
from hpcpar.plan.plan import OPTIMIZERS, Plan
from hpcpar.schedule.builder import Move, Outline
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.sharing import in_place, passes_gradient
from hpcpar.schedule.steps import CODES, Kind

#: Bytes of a pooling window's index.
INDEX_BYTES = 2


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


def memory(network: Network, plan: Plan, out: Outline, sent_bytes: dict[Any, Any], *, training: bool = True) -> Memory:
    """Memory that the largest rank needs: tensors live for the whole run, as the executor keeps them.

    Parameters
    ----------
    sent_bytes : dict
        What the busiest rank sends in each movement, by its key.
    """
    stages = _stages(plan)
    if len(stages) > 1:
        # stages hold their own layers, and activations of every micro-batch in flight
        each = [_of(network, plan, out, sent_bytes, names, training, plan.microbatches) for names in stages]
        totals = [m.total_bytes for m in each]
        return each[int(np.argmax(totals))]
    return _of(network, plan, out, sent_bytes, {layer.name for layer in network.layers}, training, plan.microbatches)


def _stages(plan: Plan) -> list[set[str]]:
    """Layers by the first rank that holds them."""
    found: dict[Any, set[str]] = {}
    for name, config in plan.configs.items():
        found.setdefault(id(config.first) if isinstance(config.first, np.ndarray) else config.first, set()).add(name)
    return list(found.values())


def _of(
    network: Network, plan: Plan, out: Outline, sent_bytes: dict[Any, Any], names: set[str], training: bool, flying: int
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
            total = total + edge_memory(network, plan, e)
    wire = sum((wire_bytes(s, sent_bytes) for s in _distinct(out, names)), np.int64(0))
    return replace(total, activations_bytes=total.activations_bytes + alive * plan.item_bytes, wire_bytes=wire).flying(flying)


def layer_memory(network: Network, plan: Plan, layer: Layer, training: bool = True) -> Memory:
    """What a layer's own configuration decides: weights, state, what is kept, and outputs that several layers read."""
    config, size = plan.configs[layer.name], plan.item_bytes
    y = owned(network, layer, config, plan.samples_of_a_pass).largest_items
    weights: Any = 0
    state: Any = 0
    kept: Any = 0
    if layer.has_weights:
        count = parameters(network, layer, config).largest_items
        weights = (1 + training) * count + layer.buffers(network.input_shape(layer))
        if training:
            part = shards(network, layer, config).largest_items if plan.synchronisation == "sharded" else count
            state = OPTIMIZERS[plan.optimizer] * part
    if training and isinstance(layer, MaxPool2d | MaxPool3d):
        kept = INDEX_BYTES * y
    elif training and isinstance(layer, LRN | Dropout):
        kept = size * y
    shared = y * size if training and len(network.consumers[layer.name]) > 1 else 0
    return Memory(weights * size, state * size, shared, shared, kept, 0)


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
    gradients = _input_gradients(ends, e.consumer, shared) if e.producer.name in network.trained else 0
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
    moved = np.where(reuse, 0, need) + np.where(inside, 0, own)
    return np.where(still, np.where(reuse & np.equal(need, own), 0, own), moved)


def _input_gradients(ends: Ends, layer: Layer, shared: bool) -> Any:
    """Items allocated for the gradients of the consumer's input and of the producer's output."""
    need, own, code = ends.need, ends.own, ends.backward
    if shared:
        return need
    again = np.equal(need, ends.made) & passes_gradient(layer)
    whole = np.where(again, 0, need)
    part = ((code == 0) | (code == CODES[Kind.ALLGATHER])) & (need < own)
    view = (code == CODES[Kind.ALLREDUCE]) | (((code == 0) | (code == CODES[Kind.HALO])) & (need >= own))
    return np.where(part, own, np.where(view, whole, whole + own))


def _alive(network: Network, plan: Plan, layer: Layer, out: Outline) -> Any:
    """Items alive while a layer is computed in inference: its inputs and its output."""
    edges = out.edges.into(layer, plan.samples_of_a_pass)
    y = owned(network, layer, plan.configs[layer.name], plan.samples_of_a_pass).largest_items
    return y + sum(e.needed.largest_items for e in edges)


def _distinct(out: Outline, names: set[str]) -> Iterable[Move]:
    """Movements with a wire buffer of their own: turns use the same again."""
    found: dict[tuple[str, Any], Move] = {}
    for step in out.steps:
        if isinstance(step, Move) and step.layer in names:
            found.setdefault((step.tensor, step.key), step)
    return found.values()


def wire_bytes(step: Move, sent_bytes: dict[Any, Any]) -> Any:
    """Wire buffer of a step on the largest rank."""
    code = np.asarray(step.pattern.code)
    return wire_buffer(code, step.holder.largest_items, step.wanter.largest_items, step.item_bytes, sent_bytes[step.key])


def wire_buffer(code: Any, held: Any, wanted: Any, item_bytes: int, sent_bytes: Any) -> Any:
    """None for an allreduce, the whole box of a gather, what comes and goes of the rest.

    Parameters
    ----------
    held, wanted : int
        Items of the largest boxes before and after.
    """
    whole = np.where(code == CODES[Kind.ALLGATHER], wanted, held) * item_bytes
    direct = (code == CODES[Kind.HALO]) | (code == CODES[Kind.REDISTRIBUTE])
    gathers = (code == CODES[Kind.ALLGATHER]) | (code == CODES[Kind.REDUCE_SCATTER])
    return np.where(direct, 2 * sent_bytes, np.where(gathers, whole, 0))
