"""The steps of weights: sums of gradients, updates, and distribution of updated weights."""

from __future__ import annotations

from collections.abc import Hashable

from hpcpar.network.layers import BatchNorm, Layer
from hpcpar.plan.config import MeshAxis
from hpcpar.plan.layout import parameters, shards
from hpcpar.plan.plan import Overlap, Plan, Synchronisation
from hpcpar.schedule.buckets import Pending, bucket_layout
from hpcpar.schedule.emitter import Emitter
from hpcpar.schedule.outline_steps import NOT_YET, Move
from hpcpar.schedule.pattern import collective_along
from hpcpar.schedule.steps import Kind, Op, Phase, Role, TensorRef

#: Axes along which a weight's gradient is a partial sum: all but channels.
SUMMED = ("n", "d", "h", "w")
#: The collective that sums a weight's gradient.
SUMS = {Synchronisation.ALLREDUCE: Kind.ALLREDUCE, Synchronisation.SHARDED: Kind.REDUCE_SCATTER,
        Synchronisation.SERVER: Kind.REDUCE}


def gradient_axes(layer: Layer, plan: Plan) -> tuple[MeshAxis, ...]:
    """Coordinates over which a weight's gradient is a partial sum."""
    mesh_axes = plan.configs[layer.name].mesh_axes
    return tuple(mesh_axes[name] for name in SUMMED)


def sums_known(plan: Plan, layer: Layer) -> bool:
    """True where all ranks know the gradient from their moments: synchronised batch normalisation.
    """
    return isinstance(layer, BatchNorm) and plan.batch_norm == "sync"


def gradient(b: Emitter, layers: tuple[Layer, ...]) -> Move | None:
    """Sum the gradient of a layer's weights, or those of a bucket of layers, over the ranks that
    hold parts of the sum.
    """
    layer = layers[-1]
    config = b.plan.configs[layer.name]
    kind = SUMS[b.plan.synchronisation]
    key: Hashable
    if len(layers) == 1:
        layout, key = parameters(b.network, layer, config), ("weight", b.edges.key(layer, 0))
    else:
        layout = bucket_layout(b.network, b.plan, layers)
        key = ("bucket", layout.axes[0].extent, config.key)
    total = shards(b.network, layer, config) if kind is Kind.REDUCE_SCATTER else layout
    tensor = TensorRef(layer.name, Role.WEIGHT, gradient=True)
    pattern = collective_along(kind, config, SUMMED)
    move = b.alone(b.move(Phase.GRADIENT, layer.name, tensor, pattern, layout, total, key))
    if move is not None:
        move.covers = tuple(other.name for other in layers)
    return move


def update(b: Emitter, pending: list[Pending]) -> None:
    """Update every weight once its gradient is summed, then distribute sharded or served ones."""
    out: list[Move | None] = []
    overlaps = b.plan.overlap is not Overlap.NONE
    for p in pending:
        if overlaps and (p.move is None or p.move.needed_by == NOT_YET):
            b.wait(p.move)
        b.compute(Phase.UPDATE, p.layer, Op.UPDATE, 1)
        out.append(hand_out(b, p.layer) if p.move is not None else None)
        if not overlaps:
            b.wait(out[-1])
    if overlaps:
        for given in out:
            b.wait(given)


def hand_out(b: Emitter, layer: Layer) -> Move | None:
    """Send updated weights to the ranks that did not update them."""
    if b.plan.synchronisation is Synchronisation.ALLREDUCE:
        return None
    layout = parameters(b.network, layer, b.plan.configs[layer.name])
    sharded = b.plan.synchronisation is Synchronisation.SHARDED
    part = shards(b.network, layer, b.plan.configs[layer.name]) if sharded else layout
    pattern = collective_along(Kind.ALLGATHER if sharded else Kind.BROADCAST,
                               b.plan.configs[layer.name], SUMMED)
    key = ("weight out", b.edges.key(layer, 0))
    tensor = TensorRef(layer.name, Role.WEIGHT)
    return b.move(Phase.UPDATE, layer.name, tensor, pattern, part, layout, key)
