"""Memory of the rank with the largest boxes, by what it is used for: the arrays that the executor
allocates.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hpcpar.cost.memory.liveness import Alive, Clock, kinds_of_cases
from hpcpar.cost.memory.sizes import Ends, Sizes, gradients, plain, values, where
from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, BatchNorm, Dropout, Layer, MaxPool2d, MaxPool3d
from hpcpar.plan.axis import entry
from hpcpar.plan.layout import Layout, owned, parameters, partial, shards
from hpcpar.plan.plan import OPTIMIZERS, Plan
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import firsts, in_flight
from hpcpar.schedule.steps import CODES, Kind

#: Bytes of a pooling window's index.
INDEX_BYTES = 2
#: Of batch normalisation, for each channel: two sums and their gradients, mean and deviation, as
#: float64.
MOMENTS_BYTES = 48
#: The place of a case of a family; None for all.
Place = tuple[int, ...] | None


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
        return Memory(
            self.weights_bytes + other.weights_bytes, self.optimizer_bytes + other.optimizer_bytes,
            self.activations_bytes + other.activations_bytes, self.gradients_bytes + other.gradients_bytes,
            self.kept_bytes + other.kept_bytes, self.wire_bytes + other.wire_bytes,
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
        values = asdict(self)
        for name in ("activations_bytes", "gradients_bytes", "kept_bytes"):
            values[name] = np.ceil(values[name] * gamma).astype(np.int64)
        return Memory(**values)


NOTHING = Memory(0, 0, 0, 0, 0, 0)


def memory(network: Network, plan: Plan, out: Outline, moved_bytes: dict[Any, Any], *,
           training: bool = True) -> Memory:
    """Memory that the largest rank needs: what is there all the time, and the most of what is alive
    at once.

    Parameters
    ----------
    moved_bytes : dict
        Of each movement from rank to rank, by its key: what the busiest rank sends, and what goes
        through the buffers of one at most.
    """
    sizes, starts = Sizes(network, plan, out.edges), firsts(network, plan)
    everything = {layer.name for layer in network.layers}
    # stages hold their own layers, and activations of the micro-batches in flight
    stages = [{name for name in everything if len(starts) == 1 or plan.configs[name].first == first}
              for first in starts]
    clocks = [(Clock(out, case), here) for case, here in kinds_of_cases(out)]
    each = [
        _of(sizes, out, clocks, moved_bytes, names, training, in_flight(plan.order, len(stages), s, plan.microbatches))
        for s, names in enumerate(stages)
    ]
    return each[0] if len(each) == 1 else each[int(np.argmax([m.total_bytes for m in each]))]


def _of(
    sizes: Sizes, out: Outline, clocks: list[tuple[Clock, Any]], moved_bytes: dict[Any, Any], names: set[str], training: bool, flying: int
) -> Memory:
    """Of some layers; `clocks` are those of a case of each kind, with the cases of its kind."""
    network, plan = sizes.network, sizes.plan
    kept = sum((constant(network, plan, layer, training) for layer in network.layers
                if layer.name in names), NOTHING)
    blocks: list[Any] = [0, 0, 0]
    for clock, here in clocks:
        peak = Alive(sizes, out, names, training,
                     lambda step: _wire(step, moved_bytes, names, sizes), clock).peak()
        # micro-batches in flight keep what their backward pass needs, while one passes
        values = peak.values_bytes + (flying - 1) * peak.forward_values_bytes
        found = (values, peak.gradients_bytes, peak.wire_bytes)
        blocks = list(found) if here is True else [np.where(here, new, old)
                                                   for new, old in zip(found, blocks, strict=True)]
    return replace(
        kept, activations_bytes=blocks[0], gradients_bytes=blocks[1], wire_bytes=blocks[2], kept_bytes=kept.kept_bytes * flying
    )


def _wire(step: Move, moved_bytes: dict[Any, Any], names: set[str], sizes: Sizes) -> Any:
    """Buffers of a movement in a stage of a pipeline: from stage to stage, several micro-batches
    may be on their way.
    """
    here, there = step.wanter.config.first, step.holder.config.first
    if here is there or np.all(np.equal(here, there)):
        if step.layer not in names:
            return 0
        # moves of one key cost alike; in another phase they may be done by another algorithm
        return sizes.once(("wire", step.key, step.phase),
                          lambda: plain(wire_bytes(step, moved_bytes[step.key][1]) + landing_bytes(step)))
    inside = any(sizes.plan.configs[name].first in (here, there) for name in names)
    return plain(moved_bytes[step.key][0] * sizes.plan.microbatches) if inside else 0


def constant(network: Network, plan: Plan, layer: Layer, training: bool = True,
             at: Place = None) -> Memory:
    """What a layer needs all the time: weights, state, and what it keeps for its backward pass; of
    all cases, or of one.
    """
    config, size = plan.configs[layer.name], plan.item_bytes
    y = _items(owned(network, layer, config, plan.samples_of_a_pass), at)
    weights: Any = 0
    state: Any = 0
    kept: Any = 0
    if layer.has_weights:
        count = _items(parameters(network, layer, config), at)
        weights = (1 + training) * count
        if training:
            part = _items(shards(network, layer, config),
                          at) if plan.synchronisation == "sharded" else count
            state = OPTIMIZERS[plan.optimizer] * part
    if training and isinstance(layer, MaxPool2d | MaxPool3d):
        kept = INDEX_BYTES * y
    elif training and isinstance(layer, LRN | Dropout):
        kept = size * y
    if isinstance(layer, BatchNorm):
        channels = _entry(owned(network, layer, config, plan.samples_of_a_pass).largest[1], at)
        weights, kept = weights + 2 * channels, MOMENTS_BYTES * channels
    if training and plan.microbatches > 1 and layer.has_weights:
        weights = weights + count  # what further micro-batches add is computed aside
    return Memory(weights * size, state * size, 0, 0, kept, 0)


def layer_memory(network: Network, plan: Plan, layer: Layer, training: bool = True,
                 at: Place = None) -> Memory:
    """What a layer's own configuration decides: what is there all the time, and outputs that
    several layers read.

    Parameters
    ----------
    at : tuple of int, optional
        The place of a case of a family, of all by default.
    """
    config, size = plan.configs[layer.name], plan.item_bytes
    y = _items(owned(network, layer, config, plan.samples_of_a_pass), at)
    shared = y * size if training and len(network.consumers[layer.name]) > 1 else 0
    activations, gradients = shared, shared if layer.name in network.trained else 0
    if config.reduces:
        parts = _items(partial(network, layer, config, plan.samples_of_a_pass), at)
        summed = where(np.greater(_entry(config.k, at), 1), parts, 0) * size
        activations = activations + summed
        gradients = gradients + (summed if training and config.scatter else 0)
    return constant(network, plan, layer, training, at) + Memory(0, 0, activations, gradients, 0, 0)


def _items(layout: Layout, at: Place) -> Any:
    """Of the largest box."""
    return _entry(layout.largest_items, at)


def _entry(values: Any, at: Place) -> Any:
    return values if at is None else entry(values, at)


def edge_memory(network: Network, plan: Plan, e: Edge, ends: Ends | None = None) -> Memory:
    """What the configurations at both ends of an edge decide: the consumer's input, and the
    producer's output where it alone reads it.

    Parameters
    ----------
    ends : Ends, optional
        Where they are at hand.
    """
    if ends is None:
        ends = Ends.of(e, owned(network, e.consumer, plan.configs[e.consumer.name],
                                plan.samples_of_a_pass))
    shared = len(network.consumers[e.producer.name]) > 1
    backward: Any = gradients(network, ends, e).items if e.producer.name in network.trained else 0
    return Memory(0, 0, values(ends, e, shared).items * plan.item_bytes, backward * plan.item_bytes,
                  0, 0)


def wire_bytes(step: Move, through_bytes: Any) -> Any:
    """Wire buffer of a step on the largest rank.

    Parameters
    ----------
    through_bytes : int
        Sent and received from rank to rank.
    """
    group = math.prod(d.size for d in step.pattern.digits)
    code = np.asarray(step.pattern.code)
    return wire_buffer(code, group, step.holder.largest_items, step.wanter.largest_items,
                       step.item_bytes, through_bytes)


def wire_buffer(code: Any, group: Any, held: Any, wanted: Any, item_bytes: int,
                through_bytes: Any) -> Any:
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
    boxes = where(code == CODES[Kind.ALLGATHER], wanted, 0)
    boxes = where((code == CODES[Kind.REDUCE_SCATTER]) | (code == CODES[Kind.BROADCAST]), held,
                  boxes)
    boxes = where(code == CODES[Kind.REDUCE], (group - 1) * held, boxes)
    return where(direct, through_bytes, boxes * item_bytes)


def landing_bytes(step: Move) -> Any:
    """Where messages land on the largest rank that are added to what it has: of a ring one block,
    of Bruck's up to half of them.
    """
    group = math.prod(d.size for d in step.pattern.digits)
    code = np.asarray(step.pattern.code)
    ring, n = np.equal(step.algorithm, "ring"), step.holder.largest_items
    block = -(-n // np.maximum(group, 1))
    both = np.where(ring, block, np.where(np.equal(step.algorithm, "doubling"), n, 0))
    pairs = zip(step.holder.largest, step.wanter.largest, strict=True)
    halves = [np.where(np.equal(h, w), w, -(-h * (group // 2) // group)) for h, w in pairs]
    scatter = np.where(ring | np.equal(step.algorithm, "mpi"), step.wanter.largest_items,
                       math.prod(halves))
    items = np.where(code == CODES[Kind.ALLREDUCE], both,
                     np.where(code == CODES[Kind.REDUCE_SCATTER], scatter, 0))
    return np.where(np.greater(group, 1), items, 0) * step.item_bytes
