"""Decides the bytes of weights, activations and messages on the rank with the largest boxes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcpar.cost.memory.sizes import gradients, values, where
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import tabulate
from hpcpar.plan.boxes import shape
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout, computed, owned, parameters, shards
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.buckets import sums_known
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.moments import moments_layout
from hpcpar.schedule.steps import CHEAPEST, CODES, SUMMING, Comm, Kind
from hpcpar.schedule.waves import most

#: Key of a movement -> upper bound of the bytes in one rank's message buffers.
MovedBytes = Mapping[Hashable, Ints]


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes
    ----------
    weights_bytes : int
        Weights, their copies for products, their gradients, and running statistics.
    optimizer_bytes : int
        The optimizer's state: velocities, or two moments.
    activations_bytes : int
        Outputs of layers, and inputs that are not views of them (gathered, or with a halo).
    gradients_bytes : int
        Gradients of activations.
    kept_bytes : int
        Data that layers keep for the backward pass: indices of maxima, normalization scales, masks.
    wire_bytes : int
        Communication buffers.
    """

    weights_bytes: Ints = 0
    optimizer_bytes: Ints = 0
    activations_bytes: Ints = 0
    gradients_bytes: Ints = 0
    kept_bytes: Ints = 0
    wire_bytes: Ints = 0

    @property
    def total_bytes(self) -> Ints:
        return sum(vars(self).values())

    def __add__(self, other: Memory) -> Memory:
        return Memory(**{use: size + getattr(other, use) for use, size in vars(self).items()})

    def grown(self, before: Memory, times: int) -> Memory:
        """The memory, extrapolated by `times` the difference from `before`."""
        return Memory(**{use: size + times * (size - getattr(before, use))
                         for use, size in vars(self).items()})

    def flying(self, microbatches: int) -> Memory:
        """The memory with several micro-batches in flight; they share gradients and messages."""
        return replace(self, activations_bytes=self.activations_bytes * microbatches,
                       kept_bytes=self.kept_bytes * microbatches)

    def scaled(self, gamma: float) -> Memory:
        """The memory with activations, gradients and kept data scaled by ParaDL's `gamma`."""
        sizes = {}
        for name in ("activations_bytes", "gradients_bytes", "kept_bytes"):
            scaled = np.ceil(getattr(self, name) * gamma).astype(np.int64)
            sizes[name] = scaled if scaled.ndim else int(scaled)
        return replace(self, **sizes)


NOTHING = Memory()


def _items(layout: Layout, rank: int | None) -> Ints:
    """Items in the box of a rank; None stands for a rank with the largest box of every layout."""
    return layout.largest_items if rank is None else layout.items(rank)


def weights_memory(network: Network, plan: Plan, layer: Layer, rank: int | None,
                   training: bool = True, updates: bool = True) -> Memory:
    """Memory of a layer's weights, gradients, running statistics and optimizer state.

    `rank` is None for the largest box. `updates` is true for a rank that updates the weights and
    therefore has the state.
    """
    if not (layer.owns_weights or layer.buffers(network.input_shape(layer))):
        return NOTHING
    config = plan.configs[layer.name]
    layout = parameters(network, layer, config)
    count = _items(layout, rank)
    copies = 1 + training
    tied = network.tied.get(layer.name, ())
    if training and layer.learns and (tied or plan.microbatches > 1):
        copies += 1 + len(tied)  # other micro-batches and layers have their own gradients
    values = copies * count
    if layer.buffers(network.input_shape(layer)):
        rows = layout.largest if rank is None else shape(layout.box(rank))
        values = values + 2 * rows[0]
    state: Ints = 0
    if training and updates and layer.learns:
        sharded = (plan.synchronization is Synchronization.SHARDED
                   and not sums_known(plan, layer))
        updated = _items(shards(network, layer, config), rank) if sharded else count
        state = len(OPTIMIZERS[plan.optimizer].state) * updated
    size = plan.formats.weight_bytes
    copy = count * plan.formats.copy_bytes if layer.is_matmul else 0
    return Memory(values * size + copy, state * size)


def kept_bytes(network: Network, plan: Plan, layer: Layer, samples: int, rank: int | None,
               training: bool = True) -> Ints:
    """Bytes that a layer keeps for the backward pass of `samples`; `rank` is None for the largest
    box.
    """
    y = owned(network, layer, plan.configs[layer.name], samples)
    if layer.statistics:
        return layer.sums_bytes * _items(moments_layout(network, plan, layer, samples), rank)
    item_bytes = layer.kept_bytes(plan.item_bytes) if training else 0
    if layer.whole_samples:
        extent = (y.largest if rank is None else shape(y.box(rank)))[0]
        return item_bytes * extent * math.prod(network.shapes[layer.name])
    return item_bytes * _items(y, rank) if item_bytes else 0


def layer_memory(network: Network, plan: Plan, layer: Layer, training: bool = True) -> Memory:
    """The memory that a layer's own configuration determines: weights, and shared outputs."""
    config, size = plan.configs[layer.name], plan.item_bytes
    samples = plan.samples_of_a_pass
    several = len(network.consumers[layer.name]) > 1
    values = owned(network, layer, config, samples).largest_items * size if several else 0
    gradients = values if training and layer.name in network.trained else 0
    if config.reduces:
        parts = computed(network, layer, config, samples).largest_items
        summed = where(np.greater(config.k, 1), parts, 0) * size
        values = values + summed
        gradients = gradients + (summed if training and config.scatter else 0)
    kept = kept_bytes(network, plan, layer, samples, None, training)
    weights = weights_memory(network, plan, layer, None, training)
    return replace(weights, activations_bytes=values, gradients_bytes=gradients, kept_bytes=kept)


def edge_memory(network: Network, plan: Plan, e: Edge, training: bool = True) -> Memory:
    """The memory that the configurations at both ends of an edge determine.

    It is the consumer's input, and the producer's output if no other layer reads it.
    """
    made = owned(network, e.consumer, plan.configs[e.consumer.name],
                 plan.samples_of_a_pass).largest_items
    shared = len(network.consumers[e.producer.name]) > 1
    returned = training and e.producer.name in network.trained
    backward: Ints = gradients(network, e, made) if returned else 0
    return Memory(activations_bytes=values(e, made, shared) * plan.item_bytes,
                  gradients_bytes=backward * plan.item_bytes)


def wire_bytes(step: Comm, through_bytes: Ints) -> Ints:
    """Size of a step's message buffer on the largest rank.

    An allreduce needs none, other collectives need one for the whole box, and point-to-point
    messages need one for the bytes sent and received (`through_bytes`).
    """
    code = np.asarray(step.pattern.code)
    direct = (code == CODES[Kind.HALO]) | (code == CODES[Kind.REDISTRIBUTE])
    boxes = where(code == CODES[Kind.ALLGATHER], step.destination.largest_items, 0)
    for kind in (Kind.REDUCE_SCATTER, Kind.BROADCAST, Kind.REDUCE):
        boxes = where(code == CODES[kind], step.source.largest_items, boxes)
    return where(direct, through_bytes, boxes * step.item_bytes)


def message_bytes(step: Comm, moved_bytes: MovedBytes) -> Ints:
    """Upper bound of a step's message buffers on the largest rank, including summands."""
    return wire_bytes(step, moved_bytes[step.key]) + landing_bytes(step)


def landing_bytes(step: Comm) -> Ints:
    """Size of the buffers for summands that the largest rank receives in a collective."""
    out: Ints = 0
    for kind in step.pattern.kinds:
        if kind not in SUMMING:
            continue
        p: Ints = math.prod(d.size for d in step.pattern.mesh_axes)
        n = step.source.largest_items
        lands: Ints = 0
        for name in np.unique(step.algorithm).tolist():
            algorithm = "ring" if name == CHEAPEST else name
            if kind in ALGORITHMS[algorithm].kinds:
                each = tabulate(partial(_lands, algorithm, kind), p, np.int64)
                lands = np.where(np.equal(step.algorithm, name), each, lands)
        # an allreduce cuts its buffer into equal blocks; other blocks have the size of a box
        items = {Kind.ALLREDUCE: -(-lands * n // np.maximum(p, 1)), Kind.REDUCE: lands * n,
                 Kind.REDUCE_SCATTER: lands * step.destination.largest_items}[kind]
        out = where(np.asarray(step.pattern.code) == CODES[kind], items, out)
    return out * step.item_bytes


def _lands(algorithm: str, kind: Kind, p: int) -> int:
    """Blocks that a member of a group has to add at once."""
    return most(algorithm, kind, p).landing if p > 1 else 0
