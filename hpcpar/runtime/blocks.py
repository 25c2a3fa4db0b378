"""Where every layer's blocks lie: neighbouring layers share memory wherever a view serves.

A producer writes straight into the middle of what its consumer needs (halos and gathered neighbours
around it), elementwise layers work in place, flattening is a reshape. A tensor that several layers
read has a block of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcpar.kernels.interface import Array, Backend
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import Box, contains, items, local, shape
from hpcpar.plan.config import Ints
from hpcpar.plan.layout import Layout, owned, partial
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import in_place, passes_gradient
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.steps import Kind


@dataclass
class Blocks:
    """A layer's arrays on one rank.

    Attributes
    ----------
    xs, dxs : list of array
        Needed boxes of the inputs, and their gradients; a gradient is None where nothing before the
        layer is trained.
    arriving : dict
        Of a tensor that several layers read: where the gradient from input `which` lands before it
        is added to the owner's, by `which`.
    begins : dict
        Of such a tensor, by `which`, where this layer's gradient is the first that arrives: the
        owner's, which is zero before.
    clears : list of array
        Gradients of which this layer computes a part, and to which others are added: zero before.
    y, dy : array
        What the rank computes of the output, and its gradient; None where there is none (the loss
        has no y).
    out, dout : array
        What the rank owns of the output, and its gradient: `y` and `dy`, but where partial sums (k)
        are added in between.
    """

    xs: list[Array] = field(default_factory=list)
    dxs: list[Array | None] = field(default_factory=list)
    arriving: dict[int, Array] = field(default_factory=dict)
    begins: dict[int, Array] = field(default_factory=dict)
    clears: list[Array] = field(default_factory=list)
    y: Array | None = None
    dy: Array | None = None
    out: Array | None = None
    dout: Array | None = None

    @property
    def x(self) -> Array:
        """The first input."""
        return self.xs[0]

    @property
    def dx(self) -> Array | None:
        """The gradient of the first input."""
        return self.dxs[0]


_NOBODY = Blocks()

#: Gives the array of a key, of a shape; set to zero if so told.
Make = Callable[[Any, tuple[int, ...], bool], Array]


class Boxes:
    """One rank's boxes of layouts. Passes that are alike ask for the same ones again; each is
    worked out once.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._known: dict[Layout, Box] = {}

    def __call__(self, layout: Layout) -> Box:
        if layout not in self._known:
            self._known[layout] = layout.box(self.rank)
        return self._known[layout]


class Storage:
    """The blocks of one rank for a pass of `samples` through some layers.

    Parameters
    ----------
    layers : sequence of Layer
        In the network's order; inputs that come from other layers than these have no producer's
        block here.
    edges : mapping
        The edges into every layer, by its name.
    box : Boxes
        The rank's boxes.
    activations, gradients : callable
        Where arrays come from.
    training : bool
        False without gradients.
    """

    def __init__(
        self, network: Network, plan: Plan, layers: Sequence[Layer], edges: Mapping[str, tuple[Edge, ...]], samples: Ints,
        backend: Backend, box: Boxes, activations: Make, gradients: Make, training: bool = True,
    ) -> None:
        self.network, self.plan, self.edges, self.samples, self.box = network, plan, edges, samples, box
        self.backend, self.activations, self.gradients = backend, activations, gradients
        self.blocks = {layer.name: Blocks() for layer in layers}
        self._begun: set[str] = set()
        for layer in reversed(layers):
            self._finish(layer, training)
            here = self.blocks[layer.name]
            for e in edges.get(layer.name, ()):
                here.xs.append(self._input(e, layer))
                trains = training and e.producer.name in network.trained
                here.dxs.append(self._gradient(e, layer) if trains else None)

    # -- a layer's own -----------------------------------------------------------------------------
    def _finish(self, layer: Layer, training: bool) -> None:
        """All consumers have said where the output shall be: what is computed of it is that, or
        partial sums of it.
        """
        here, config = self.blocks[layer.name], self.plan.configs[layer.name]
        if layer is self.network.layers[-1]:
            return
        own = self.box(owned(self.network, layer, config, self.samples))
        if here.out is None:
            here.out = self.activations((layer.name, "out"), shape(own), False)
        if here.dout is None and training and layer.name in self.network.trained:
            here.dout = self.gradients((layer.name, "out"), shape(own), True)
        here.y, here.dy = here.out, here.dout
        if config.k > 1:
            made = self.box(partial(self.network, layer, config, self.samples))
            here.y = self.activations((layer.name, "partial"), shape(made), False)
            if config.scatter and here.dout is not None:
                here.dy = self.gradients((layer.name, "partial"), shape(made), False)

    def _boxes(self, e: Edge) -> tuple[Box, Box]:
        return self.box(e.needed), self.box(e.owned)

    def _whole(self, layer: Layer, need: Box) -> bool:
        """True where the layer's output has as many items as what it needs."""
        return items(self.box(owned(self.network, layer, self.plan.configs[layer.name],
                                    self.samples))) == items(need)

    def _before(self, e: Edge) -> Blocks:
        """The producer's blocks; of a layer outside, some that nobody looks at."""
        return self.blocks.get(e.producer.name, _NOBODY)

    def _shared(self, e: Edge) -> bool:
        return len(self.network.consumers[e.producer.name]) > 1

    # -- forward -----------------------------------------------------------------------------------
    def _input(self, e: Edge, layer: Layer) -> Array:
        """The consumer's input; where it alone reads the tensor, the producer's output with it."""
        (need, own), before, here = self._boxes(e), self._before(e), self.blocks[layer.name]

        def new(box: Box, what: str) -> Array:
            owner = e.producer if what == "out" else layer
            return self.activations((owner.name, layer.name, e.which, what), shape(box), False)

        if e.producer.name not in self.blocks:
            return new(need, "x")
        if self._shared(e):
            if before.out is None:
                before.out = new(own, "out")
            return _part(self.backend, before.out, need,
                         own) if e.forward.kind is None else new(need, "x")
        alone = layer is not self.network.layers[-1] and len(layer.inputs) == 1 and in_place(layer, e.producer)
        reuse = here.y if alone and self._whole(layer, need) else None
        if e.forward.kind is None:
            if reuse is not None and need == own:
                before.out = reuse.reshape(shape(need))
                return before.out
            # on a piece of a larger block, an elementwise layer's own block cannot serve as the
            # producer's block too
            before.out = new(own, "out")
            return _part(self.backend, before.out, need, own)
        if e.forward.kind is Kind.HALO and reuse is None and not contains(need, own):
            # a window that skips some of what the rank owns: both are parts of the box around them
            hull = _hull(need, own)
            whole = new(hull, "hull")
            before.out = _part(self.backend, whole, own, hull)
            return _part(self.backend, whole, need, hull)
        x = new(need, "x") if reuse is None else reuse.reshape(shape(need))
        within = e.forward.kind is not Kind.REDISTRIBUTE and contains(need, own)
        before.out = _part(self.backend, x, own, need) if within else new(own, "out")
        return x

    # -- backward ----------------------------------------------------------------------------------
    def _gradient(self, e: Edge, layer: Layer) -> Array:
        """The gradient of the consumer's input; where it alone reads the tensor, that of the
        producer's output with it.
        """
        (need, own), before, here = self._boxes(e), self._before(e), self.blocks[layer.name]
        kind = e.backward.kind

        def new(box: Box, what: str, zero: bool = False) -> Array:
            return self.gradients((e.producer.name, layer.name, e.which, what), shape(box), zero)

        if e.producer.name not in self.blocks:
            return new(need, "x")
        if self._shared(e):
            return self._one_of_many(e, here, before, new)
        again = here.dy if layer is not self.network.layers[-1] and passes_gradient(
            layer) and self._whole(layer, need) else None
        if kind in (None, Kind.ALLGATHER) and need != own and contains(own, need):
            # the rest of the block gets no gradient (or its neighbours'), and zero stays zero
            before.dout = new(own, "out", True)
            return _part(self.backend, before.dout, need, own)
        if kind in (None, Kind.HALO) and again is None and not contains(need, own):
            # each sticks out of the other along some axis: both are parts of the box around them
            hull = _hull(need, own)
            whole = new(hull, "hull", True)
            before.dout = _part(self.backend, whole, own, hull)
            if kind is Kind.HALO:
                here.clears.append(before.dout)
            return _part(self.backend, whole, need, hull)
        dx = new(need, "x") if again is None else again.reshape(shape(need))
        if kind is Kind.ALLREDUCE:
            before.dout = dx
        elif kind in (None, Kind.HALO) and contains(need, own):
            before.dout = _part(self.backend, dx, own, need)
        else:
            # sums of messages begin as zero by themselves
            before.dout = new(own, "out", kind not in (Kind.REDUCE_SCATTER, Kind.REDISTRIBUTE))
        return dx

    def _one_of_many(self, e: Edge, here: Blocks, before: Blocks,
                     new: Callable[..., Array]) -> Array:
        """The gradient that one of several readers gives: the first goes where the sum shall be,
        the others are added to it.
        """
        need, own = self._boxes(e)
        kind = e.backward.kind
        first = e.producer.name not in self._begun
        if first:
            self._begun.add(e.producer.name)
            before.dout = new(own, "out")
            if kind in (None, Kind.ALLREDUCE) and need == own:
                return before.dout
            if kind is None:
                here.begins[e.which] = before.dout
            else:
                here.arriving[e.which] = before.dout
            return new(need, "x")
        if kind not in (None, Kind.ALLREDUCE):
            here.arriving[e.which] = new(own, "arriving")
        return new(need, "x")


def _hull(a: Box, b: Box) -> Box:
    """The smallest box around two; of an empty one, the other."""
    if not items(a) or not items(b):
        return a if items(a) else b
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))


def _part(backend: Backend, whole: Array, part: Box, of: Box) -> Array:
    """The view of box `part` in the array of box `of`; an empty box may lie outside it."""
    return whole[local(part, of)] if items(part) else backend.empty(shape(part), whole.dtype)
