"""Buckets: the gradients of several layers are summed at once, with one latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Flags, Ints
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.schedule.outline_steps import Move


@dataclass(eq=False)
class Pending:
    """A layer whose gradient each rank has computed, and the movement that sums it, if any."""

    layer: Layer
    move: Move | None = None


def sums_known(plan: Plan, layer: Layer) -> bool:
    """True where all ranks know the gradient from their moments: synchronised batch normalisation.
    """
    return layer.statistics == "batch" and plan.batch_norm == "sync"


def summed(plan: Plan, layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose gradients are sums over ranks, in the order in which they are complete."""
    return [layer for layer in reversed(layers)
            if layer.learns and layer.owns_weights and not sums_known(plan, layer)]


def gradient_bytes(network: Network, plan: Plan, layer: Layer) -> int:
    """Size of the gradient of a layer's weights."""
    return layer.parameters(network.input_shape(layer)) * plan.formats.weight_bytes


def share(plan: Plan, layer: Layer, following: Layer) -> bool:
    """True where two layers may share a bucket: the same ranks sum their whole gradients."""
    one, other = plan.configs[layer.name], plan.configs[following.name]
    return (plan.synchronisation is Synchronisation.ALLREDUCE and one.key == other.key
            and not one.cuts_channels)


def closes(network: Network, plan: Plan, layers: Sequence[Layer],
           bucket_bytes: Ints) -> list[Flags]:
    """Where buckets end: layers join the open bucket up to its size.

    Parameters
    ----------
    layers : sequence of Layer
        As `summed` gives them.
    bucket_bytes : int
        `Plan.bucket_bytes`, or an array of sizes.

    Returns
    -------
    list of bool
        For each layer (and size), whether it is the last of its bucket.
    """
    ends: list[Flags] = []
    held: Ints = 0
    for layer, following in zip(layers, [*layers[1:], None], strict=False):
        held = held + gradient_bytes(network, plan, layer)
        joins: Flags = np.zeros(np.shape(bucket_bytes), np.bool_)
        if following is not None and share(plan, layer, following):
            joins = held + gradient_bytes(network, plan, following) <= bucket_bytes
        ends.append(np.logical_not(joins))
        held = np.where(joins, held, 0)
    return ends


def bucket_layout(plan: Plan, layer: Layer, items: Ints) -> Layout:
    """A number of gradients side by side, up to those of `layer`: every rank has all of them."""
    return Layout(plan.configs[layer.name], (Axis("items", items, items),))
