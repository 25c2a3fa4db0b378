"""Memory of the rank with the largest boxes, by what it is used for."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hpcpar.network.graph import Network
from hpcpar.network.layers import LRN, Dropout, Input, MaxPool2d
from hpcpar.plan.layout import needed, owned, parameters
from hpcpar.plan.plan import Plan
from hpcpar.schedule.lower import edges
from hpcpar.schedule.steps import Comm, Kind, Schedule

#: Copies of the weights: values, gradients, velocities.
WEIGHT_COPIES = 3
#: Bytes of a pooling window's index, and of a dropout mask's element.
INDEX_BYTES = 4
MASK_BYTES = 1


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes
    ----------
    weights_bytes : int
        Weights, gradients and velocities.
    activations_bytes : int
        Owned outputs of all layers and their gradients.
    needed_bytes : int
        Inputs that differ from what the rank owns (gathered, or with a halo), and their gradients.
    kept_bytes : int
        What layers keep for the backward pass: indices of maxima, normalisation scales, masks.
    wire_bytes : int
        Communication buffers.
    """

    weights_bytes: int
    activations_bytes: int
    needed_bytes: int
    kept_bytes: int
    wire_bytes: int

    @property
    def total_bytes(self) -> int:
        return sum(asdict(self).values())


def memory(network: Network, plan: Plan, schedule: Schedule) -> Memory:
    """Memory that the largest rank needs to train: tensors live for the whole run, as the executor keeps them."""
    size = plan.item_bytes
    weights = activations = inputs = kept = 0
    edge = edges(network, plan)
    for layer in network.layers:
        config = plan.configs[layer.name]
        y = owned(network, layer, config, plan.batch).largest_items
        if isinstance(layer, Input):
            activations += y * size
            continue
        activations += 2 * y * size
        if layer.has_weights:
            weights += WEIGHT_COPIES * parameters(network, layer, config).largest_items * size
        e = edge[layer.name]
        moves = (e.forward.kind is not None) + (e.backward.kind is not None)
        inputs += moves * needed(network, layer, config, plan.batch).largest_items * size
        if isinstance(layer, MaxPool2d):
            kept += INDEX_BYTES * y
        elif isinstance(layer, LRN):
            kept += size * y
        elif isinstance(layer, Dropout):
            kept += MASK_BYTES * y
    return Memory(weights, activations, inputs, kept, sum(wire_bytes(step) for step in schedule.comms))


def wire_bytes(step: Comm) -> int:
    """Wire buffer of a step on the largest rank: none for an allreduce, the whole box of a gather, what comes and goes of the rest."""
    if step.kind is Kind.ALLREDUCE:
        return 0
    held, wanted = step.holder.largest_items, step.wanter.largest_items
    if step.kind is Kind.HALO:
        return 2 * abs(wanted - held) * step.item_bytes
    whole = wanted if step.kind is Kind.ALLGATHER else held
    return (whole if step.group is not None else held + wanted) * step.item_bytes
