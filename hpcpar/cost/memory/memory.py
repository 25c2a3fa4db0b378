"""Memory of the rank with the largest boxes, by what it is used for: the arrays that the executor
allocates.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from hpcpar.cost.memory.sizes import Ends, gradients, values, where
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Layer,
)
from hpcpar.plan.boxes import shape
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout, computed, owned, parameters, shards
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.buckets import sums_known
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.moments import moments_layout
from hpcpar.schedule.outline_steps import CHEAPEST, Move
from hpcpar.schedule.steps import CODES, Kind

#: Bytes that go through the buffers of one rank at most, by the key of each movement between ranks.
MovedBytes = Mapping[Hashable, Ints]


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes
    ----------
    weights_bytes : int
        Weights, their copies for products, their gradients, and running statistics.
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

    weights_bytes: Ints
    optimizer_bytes: Ints
    activations_bytes: Ints
    gradients_bytes: Ints
    kept_bytes: Ints
    wire_bytes: Ints

    @property
    def total_bytes(self) -> Ints:
        constant = self.weights_bytes + self.optimizer_bytes + self.kept_bytes
        return constant + self.activations_bytes + self.gradients_bytes + self.wire_bytes

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.weights_bytes + other.weights_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
            self.activations_bytes + other.activations_bytes,
            self.gradients_bytes + other.gradients_bytes,
            self.kept_bytes + other.kept_bytes,
            self.wire_bytes + other.wire_bytes,
        )

    def flying(self, microbatches: int) -> Memory:
        """With what every micro-batch in flight keeps for its backward pass; they share gradients
        and the wire.
        """
        if microbatches == 1:
            return self
        return replace(self, activations_bytes=self.activations_bytes * microbatches,
                       kept_bytes=self.kept_bytes * microbatches)

    def scaled(self, gamma: float) -> Memory:
        """With activations, their gradients and what is kept times `gamma`: ParaDL's factor for
        what a framework reuses.
        """
        sizes = asdict(self)
        for name in ("activations_bytes", "gradients_bytes", "kept_bytes"):
            scaled = np.ceil(sizes[name] * gamma).astype(np.int64)
            sizes[name] = scaled if scaled.ndim else int(scaled)
        return Memory(**sizes)


NOTHING = Memory(0, 0, 0, 0, 0, 0)


class Largest:
    """The largest box of every layout."""

    def extents(self, layout: Layout) -> tuple[Ints, ...]:
        return layout.largest

    def items(self, layout: Layout) -> Ints:
        return layout.largest_items


class OfRank:
    """The box of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def extents(self, layout: Layout) -> tuple[Ints, ...]:
        return shape(layout.box(self._rank))

    def items(self, layout: Layout) -> Ints:
        return layout.items(self._rank)


def weights_memory(network: Network, plan: Plan, layer: Layer, boxes: Largest | OfRank,
                   training: bool = True, updates: bool = True) -> Memory:
    """A layer's weights, their gradients, running statistics, and the optimiser's state where this
    rank updates.
    """
    if not (layer.owns_weights or layer.buffers(network.input_shape(layer))):
        return NOTHING
    config = plan.configs[layer.name]
    layout = parameters(network, layer, config)
    count = boxes.items(layout)
    copies = 1 + training
    tied = network.tied.get(layer.name, ())
    if training and layer.learns and (tied or plan.microbatches > 1):
        copies += 1 + len(tied)  # what further micro-batches and layers add has buffers of its own
    values = copies * count
    if layer.buffers(network.input_shape(layer)):
        values = values + 2 * boxes.extents(layout)[0]
    state: Ints = 0
    if training and updates and layer.learns:
        sharded = (plan.synchronisation is Synchronisation.SHARDED
                   and not sums_known(plan, layer))
        mine = boxes.items(shards(network, layer, config)) if sharded else count
        state = len(OPTIMIZERS[plan.optimizer].state) * mine
    size = plan.formats.weight_bytes
    copy = count * plan.formats.copy_bytes if layer.is_matmul else 0
    return Memory(values * size + copy, state * size, 0, 0, 0, 0)


def kept_bytes(network: Network, plan: Plan, layer: Layer, samples: int, boxes: Largest | OfRank,
               training: bool = True) -> Ints:
    """Bytes that a layer keeps of a pass of `samples` for its backward pass."""
    y = owned(network, layer, plan.configs[layer.name], samples)
    if layer.statistics:
        return layer.sums_bytes * boxes.items(moments_layout(network, plan, layer, samples))
    each = layer.kept_bytes(plan.item_bytes) if training else 0
    return each * boxes.items(y) if each else 0


def layer_memory(network: Network, plan: Plan, layer: Layer, training: bool = True) -> Memory:
    """The memory that a layer's own configuration decides: what is there all the time, and
    outputs that several layers read.
    """
    config, size, boxes = plan.configs[layer.name], plan.item_bytes, Largest()
    samples = plan.samples_of_a_pass
    several = len(network.consumers[layer.name]) > 1
    values = boxes.items(owned(network, layer, config, samples)) * size if several else 0
    gradients = values if training and layer.name in network.trained else 0
    if config.reduces:
        parts = boxes.items(computed(network, layer, config, samples))
        summed = where(np.greater(config.k, 1), parts, 0) * size
        values = values + summed
        gradients = gradients + (summed if training and config.scatter else 0)
    kept = kept_bytes(network, plan, layer, samples, boxes, training)
    held = weights_memory(network, plan, layer, boxes, training)
    return held + Memory(0, 0, values, gradients, kept, 0)


def edge_memory(network: Network, plan: Plan, e: Edge) -> Memory:
    """The memory that the configurations at both ends of an edge decide: the consumer's input,
    and the producer's output where it alone reads it.
    """
    ends = Ends.of(e, owned(network, e.consumer, plan.configs[e.consumer.name],
                            plan.samples_of_a_pass))
    shared = len(network.consumers[e.producer.name]) > 1
    backward: Ints = gradients(network, ends, e) if e.producer.name in network.trained else 0
    return Memory(0, 0, values(ends, e, shared) * plan.item_bytes, backward * plan.item_bytes,
                  0, 0)


def wire_bytes(step: Move, through_bytes: Ints) -> Ints:
    """Wire buffer of a step on the largest rank.

    Parameters
    ----------
    through_bytes : int
        Sent and received from rank to rank.
    """
    return wire_buffer(np.asarray(step.pattern.code), step.source.largest_items,
                       step.destination.largest_items, step.item_bytes, through_bytes)


def wire_buffer(code: Ints, held: Ints, wanted: Ints, item_bytes: int, through_bytes: Ints) -> Ints:
    """None for an allreduce, the whole box of another collective, what comes and goes of the rest.

    Parameters
    ----------
    held, wanted : int
        Items of the largest boxes before and after.
    through_bytes : int
        Sent and received from rank to rank.
    """
    direct = (code == CODES[Kind.HALO]) | (code == CODES[Kind.REDISTRIBUTE])
    boxes = where(code == CODES[Kind.ALLGATHER], wanted, 0)
    for kind in (Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.REDUCE):
        boxes = where(code == CODES[kind], held, boxes)
    return where(direct, through_bytes, boxes * item_bytes)


def message_bytes(step: Move, moved_bytes: MovedBytes) -> Ints:
    """Messages of a step on the largest rank, and where they land to be added, at most."""
    return wire_bytes(step, moved_bytes[step.key]) + landing_bytes(step)


def landing_bytes(step: Move) -> Ints:
    """Where messages land on the largest rank that are added to what it has."""
    group = math.prod(d.size for d in step.pattern.mesh_axes)
    code = np.asarray(step.pattern.code)
    n = step.source.largest_items
    items: Ints = 0
    for kind in (Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE):
        if not np.any(code == CODES[kind]):
            continue
        block = (step.destination.largest_items if kind is Kind.REDUCE_SCATTER
                 else -(-n // np.maximum(group, 1)))
        for name in np.unique(step.algorithm).tolist():
            here = (code == CODES[kind]) & np.equal(step.algorithm, name)
            entry = ALGORITHMS["ring" if name == CHEAPEST else name]
            items = np.where(here, entry.landing_items(kind, group, n, block), items)
    return np.where(np.greater(group, 1), items, 0) * step.item_bytes
