"""Decides which layers share a bucket: one allreduce sums all of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.axis import Axis
from hpcpar.plan.config import Flags, Ints
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.steps import Comm


@dataclass(eq=False)
class Pending:
    """A layer with a complete local gradient, and the movement that sums it, if any."""

    layer: Layer
    move: Comm | None = None


def sums_known(plan: Plan, layer: Layer) -> bool:
    """True where summed moments already give the gradient: synchronized batch norm."""
    return layer.statistics == "batch" and plan.batch_norm == "sync"


def summed(plan: Plan, layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose gradients are summed over ranks, in the order of the backward pass."""
    return [layer for layer in reversed(layers)
            if layer.learns and layer.owns_weights and not sums_known(plan, layer)]


def gradient_bytes(network: Network, plan: Plan, layer: Layer) -> int:
    """Size of a layer's weight gradient."""
    return layer.parameters(network.input_shape(layer)) * plan.formats.weight_bytes


def share(plan: Plan, layer: Layer, following: Layer) -> bool:
    """True where two layers may share a bucket: the same ranks sum whole gradients of both."""
    one, other = plan.configs[layer.name], plan.configs[following.name]
    return (plan.synchronization is Synchronization.ALLREDUCE and one.key == other.key
            and not one.cuts_channels)


def closes(network: Network, plan: Plan, layers: Sequence[Layer],
           bucket_bytes: Ints) -> list[Flags]:
    """Find where buckets end: a layer joins the open bucket unless it would grow too large.

    Parameters
    ----------
    layers : sequence of Layer
        The result of `summed`.
    bucket_bytes : int
        `Plan.bucket_bytes`, or an array of sizes.

    Returns
    -------
    list of bool
        True for the last layer of a bucket; an array with an entry per size.
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
    """A bucket of `items` gradients that ends with `layer`'s; every rank holds all of it."""
    return Layout(plan.configs[layer.name], (Axis("items", items, items),))
