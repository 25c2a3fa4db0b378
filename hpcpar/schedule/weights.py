"""Decides how weights are learned: gradient sums, updates, and distribution of updated weights."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from hpcpar.network.layers import Layer
from hpcpar.plan.config import Ints, MeshAxis, value_key
from hpcpar.plan.layout import Layout, parameters, shards
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.buckets import Pending, bucket_layout
from hpcpar.schedule.overlap import Emitter
from hpcpar.schedule.pattern_family import collective_along
from hpcpar.schedule.steps import HOST, Comm, Kind, Op, Phase, Role, TensorRef

#: Axes along which a weight gradient is a partial sum: all but channels.
SUMMED = ("n", "d", "h", "w")
#: The collective that sums a weight gradient.
SUMS = {Synchronization.ALLREDUCE: Kind.ALLREDUCE, Synchronization.SHARDED: Kind.REDUCE_SCATTER,
        Synchronization.SERVER: Kind.REDUCE, Synchronization.SERVER_HOST: Kind.REDUCE}


def gradient_axes(layer: Layer, plan: Plan) -> tuple[MeshAxis, ...]:
    """Coordinates over which a weight gradient is a partial sum."""
    mesh_axes = plan.configs[layer.name].mesh_axes
    return tuple(mesh_axes[name] for name in SUMMED)


def gradient(b: Emitter, layers: Sequence[Layer]) -> Comm | None:
    """Sum a layer's or a bucket's weight gradient over the ranks with partial sums."""
    layer, covers = layers[-1], tuple(other.name for other in layers)
    if len(layers) > 1:
        items = sum(other.parameters(b.network.input_shape(other)) for other in layers)
        return bucket_sum(b, layer, items, covers)
    config, kind = b.plan.configs[layer.name], SUMS[b.plan.synchronization]
    layout = parameters(b.network, layer, config)
    total = shards(b.network, layer, config) if kind is Kind.REDUCE_SCATTER else layout
    return _gradient_sum(b, layer, kind, layout, total, ("weight", b.edges.key(layer, 0)), covers)


def bucket_sum(b: Emitter, layer: Layer, items: Ints, covers: tuple[str, ...] = ()
               ) -> Comm | None:
    """Sum a bucket of `items` gradients that ends with `layer`'s over the ranks that share it."""
    layout = bucket_layout(b.plan, layer, items)
    key = ("bucket", value_key(items), layout.config.key)
    return _gradient_sum(b, layer, Kind.ALLREDUCE, layout, layout, key, covers)


def _gradient_sum(b: Emitter, layer: Layer, kind: Kind, before: Layout, after: Layout,
                  key: Hashable, covers: tuple[str, ...]) -> Comm | None:
    tensor = TensorRef(layer.name, Role.WEIGHT, gradient=True)
    pattern = collective_along(kind, before.config, SUMMED)
    return b.move(Phase.GRADIENT, layer.name, tensor, pattern, before, after, key, covers=covers)


def update(b: Emitter, pending: list[Pending]) -> None:
    """Update each layer's weights once their gradient is summed, then distribute weights that are
    sharded or held by a server. Gradients that are summed on a host are updated there.

    Where the caller updates weights, only wait for the gradients.
    """
    distributed = []
    for p in pending if b.plan.rules.updates_at_end else ():
        b.wait(p.move)
    for p in pending:
        b.wait(p.move)
        if not b.network.loss.outside:
            hosted = p.move is not None and np.equal(p.move.algorithm, HOST)
            b.compute(Phase.UPDATE, p.layer, Op.UPDATE, 1, np.logical_not(hosted))
            b.compute(Phase.UPDATE, p.layer, Op.HOST_UPDATE, 1, hosted)
            distributed.append(distribute(b, p.layer) if p.move is not None else None)
    for move in distributed:
        b.wait(move)


def distribute(b: Emitter, layer: Layer) -> Comm | None:
    """Send updated weights to the ranks that did not update them."""
    if b.plan.synchronization is Synchronization.ALLREDUCE:
        return None
    layout = parameters(b.network, layer, b.plan.configs[layer.name])
    sharded = b.plan.synchronization is Synchronization.SHARDED
    part = shards(b.network, layer, b.plan.configs[layer.name]) if sharded else layout
    pattern = collective_along(Kind.ALLGATHER if sharded else Kind.BROADCAST,
                               b.plan.configs[layer.name], SUMMED)
    key = ("weight out", b.edges.key(layer, 0))
    tensor = TensorRef(layer.name, Role.WEIGHT)
    return b.move(Phase.UPDATE, layer.name, tensor, pattern, part, layout, key)
