"""Where every layer's blocks lie: neighbouring layers share memory wherever a view serves.

A producer writes straight into the middle of what its consumer needs (halos and gathered neighbours around it),
elementwise layers work in place, flattening is a reshape.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import contains, items, local, shape
from hpcpar.plan.layout import owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.sharing import in_place, passes_gradient
from hpcpar.schedule.steps import Kind


@dataclass
class Blocks:
    """A layer's arrays on one rank: `x` and `dx` are needed boxes of the input, `y` and `dy` owned boxes of the output.

    `dx` is None where no layer before has weights; `x` is None for the input layer.
    """

    x: Array | None = None
    y: Array | None = None
    dx: Array | None = None
    dy: Array | None = None


def allocate(network: Network, plan: Plan, edges: dict[str, Edge], backend: Backend, rank: int) -> dict[str, Blocks]:
    """All blocks of one rank, from the last layer to the first, by layer name."""
    out = {layer.name: Blocks() for layer in network.layers}
    dtype = plan.dtype
    last = network.layers[-1]
    first_weighted = network.layers.index(network.weighted[0]) if network.weighted else len(network.layers)
    # a loss has no output of its own: its backward pass is its gradient
    for i in range(len(network.layers) - 1, 0, -1):
        layer = network.layers[i]
        e = edges[layer.name]
        here, before = out[layer.name], out[e.producer.name]
        need, own = e.needed.box(rank), e.owned.box(rank)
        reuse = here.y if layer is not last and in_place(layer, e.producer) and _same_size(network, plan, layer, need, rank) else None
        here.x, before.y = _forward(backend, dtype, e, need, own, reuse)
        if i > first_weighted:
            again = here.dy if layer is not last and passes_gradient(layer) and _same_size(network, plan, layer, need, rank) else None
            here.dx, before.dy = _backward(backend, dtype, e, need, own, again)
    return out


def _same_size(network: Network, plan: Plan, layer: Layer, need: tuple[tuple[int, int], ...], rank: int) -> bool:
    box = owned(network, layer, plan.configs[layer.name], plan.batch).box(rank)
    return items(box) == items(need)


def _forward(
    backend: Backend, dtype: str, e: Edge, need: tuple[tuple[int, int], ...], own: tuple[tuple[int, int], ...], reuse: Array | None
) -> tuple[Array, Array]:
    """(x of the consumer, y of the producer)."""
    if e.forward.kind is None:
        if reuse is not None and need == own:
            x = reuse.reshape(shape(need))
            return x, x
        # on a piece of a larger block, an elementwise layer's own block cannot serve as the producer's block too
        y = backend.empty(shape(own), dtype)
        return _part(backend, y, need, own), y
    x = backend.empty(shape(need), dtype) if reuse is None else reuse.reshape(shape(need))
    if e.forward.kind is not Kind.REDISTRIBUTE and contains(need, own):
        return x, _part(backend, x, own, need)
    return x, backend.empty(shape(own), dtype)


def _backward(
    backend: Backend, dtype: str, e: Edge, need: tuple[tuple[int, int], ...], own: tuple[tuple[int, int], ...], again: Array | None
) -> tuple[Array, Array]:
    """(dx of the consumer, dy of the producer)."""
    kind = e.backward.kind
    if kind in (None, Kind.ALLGATHER) and need != own and contains(own, need):
        # the rest of the block gets no gradient (or its neighbours'), and zero stays zero
        dy = backend.zeros(shape(own), dtype)
        return _part(backend, dy, need, own), dy
    if kind is None and not contains(need, own):
        # each sticks out of the other along some axis: both are parts of the box around them
        hull = tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(need, own, strict=True))
        whole = backend.zeros(shape(hull), dtype)
        return whole[local(need, hull)], whole[local(own, hull)]
    dx = backend.empty(shape(need), dtype) if again is None else again.reshape(shape(need))
    if kind is Kind.ALLREDUCE:
        return dx, dx
    if kind in (None, Kind.HALO) and contains(need, own):
        return dx, _part(backend, dx, own, need)
    return dx, backend.zeros(shape(own), dtype)


def _part(backend: Backend, whole: Array, part: tuple[tuple[int, int], ...], of: tuple[tuple[int, int], ...]) -> Array:
    """The view of box `part` in the array of box `of`; an empty box may lie outside it."""
    return whole[local(part, of)] if items(part) else backend.empty(shape(part), whole.dtype)
