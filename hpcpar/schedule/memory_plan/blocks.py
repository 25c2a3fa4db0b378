"""Decides where every layer's blocks lie; neighboring layers share a buffer where a view will do.

A producer writes straight into the middle of its consumer's input (halos, gathered neighbors and
padding lie around it). Elementwise layers work in place, and flattening is a reshape. A tensor that
several layers read has its own buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.boxes import Box, contains, items, shape
from hpcpar.plan.layout import computed, owned
from hpcpar.plan.plan import Plan
from hpcpar.schedule.aliasing import in_place
from hpcpar.schedule.edges import Edge
from hpcpar.schedule.memory_plan.views import Buffer, View
from hpcpar.schedule.steps import Kind

A = TypeVar("A")
B = TypeVar("B")


@dataclass
class Blocks(Generic[A]):
    """A layer's views (or arrays) on one rank.

    Attributes
    ----------
    xs, dxs : list
        Needed boxes of the inputs, and their gradients. A gradient is None where no earlier layer
        is trained.
    arriving : dict
        For inputs with several readers, by input index: where the gradient lands before it is added
        to the owner's gradient.
    begins : dict
        For inputs with several readers, by input index: the owner's gradient, if this layer is the
        first reader to write it. The layer clears it first.
    clears : list
        Gradients that this layer clears before it writes a part of them; others are added later.
    y, dy
        The part of the output that the rank computes, and its gradient; None where there is none
        (the loss has no y).
    out, dout
        The part of the output that the rank owns, and its gradient. They differ from `y` and `dy`
        only where ranks add partial sums (k) in between.
    """

    xs: list[A] = field(default_factory=list)
    dxs: list[A | None] = field(default_factory=list)
    arriving: dict[int, A] = field(default_factory=dict)
    begins: dict[int, A] = field(default_factory=dict)
    clears: list[A] = field(default_factory=list)
    y: A | None = None
    dy: A | None = None
    out: A | None = None
    dout: A | None = None

    @property
    def x(self) -> A:
        """The first input."""
        return self.xs[0]

    @property
    def dx(self) -> A | None:
        """The gradient of the first input."""
        return self.dxs[0]

    @property
    def each(self) -> list[A | None]:
        """Inputs and outputs, and their gradients."""
        return [*self.xs, *self.dxs, self.y, self.dy, self.out, self.dout]

    def map(self, make: Callable[[A], B]) -> Blocks[B]:
        """Apply `make` to each block."""

        def maybe(value: A | None) -> B | None:
            return None if value is None else make(value)

        return Blocks(
            [make(x) for x in self.xs], [maybe(dx) for dx in self.dxs],
            {which: make(a) for which, a in self.arriving.items()},
            {which: make(a) for which, a in self.begins.items()},
            [make(a) for a in self.clears],
            maybe(self.y), maybe(self.dy), maybe(self.out), maybe(self.dout),
        )


@dataclass(frozen=True)
class Slots:
    """Which of several equal buffers a pass uses; slot 0 by default.

    Attributes
    ----------
    kept : mapping
        Slots of the arrays that layers keep for their backward pass, by layer.
    gradient : str
        The layer whose input gradient has its own slots; other gradients share one.
    only_inputs : bool
        Whether only the inputs of these layers, and their gradients, have slots.
    """

    kept: Mapping[str, int] = field(default_factory=dict)
    gradient: str = ""
    only_inputs: bool = False

    def of_layer(self, layer: str) -> int:
        """The slot of the arrays that a layer keeps for its backward pass."""
        return self.kept.get(layer, 0)

    def of_value(self, layer: str, what: str) -> int:
        """The slot of a value that belongs to `layer`."""
        return self.of_layer(layer) if what == "x" or not self.only_inputs else 0

    def of_gradient(self, reader: str, what: str) -> int:
        """The slot of a gradient that `reader` computes."""
        return self.of_value(reader, what) if reader == self.gradient else 0


class BlockPlanner:
    """Lays out the blocks of one rank for a pass of samples through `layers`, in network order.

    `edges` has the edges into each layer; an input from any other layer has its own buffer.
    `buffers` collects the buffers: one per key, which ends with role and shape.
    """

    def __init__(self, network: Network, plan: Plan, rank: int, layers: Sequence[Layer],
                 edges: Mapping[str, tuple[Edge, ...]], samples: int,
                 buffers: dict[Hashable, Buffer], slots: Slots, training: bool) -> None:
        self.network, self.plan, self.rank, self.samples = network, plan, rank, samples
        self.buffers, self.slots, self.training = buffers, slots, training
        self.blocks: dict[str, Blocks[View]] = {layer.name: Blocks() for layer in layers}
        self._last = network.layers[-1]
        self._summed: set[str] = set()
        for layer in reversed(layers):
            self._output(layer)
            blocks = self.blocks[layer.name]
            for e in edges.get(layer.name, ()):
                need, own = e.needed.box(rank), e.owned.box(rank)
                blocks.xs.append(self._input(e, need, own))
                trains = training and e.producer.name in network.trained
                blocks.dxs.append(self._input_gradient(e, need, own) if trains else None)

    # -- buffers -----------------------------------------------------------------------------------
    def _view(self, layer: str, what: str, box: Box, reader: str = "", which: int = 0, *,
              gradient: bool = False, zero: bool = False) -> View:
        """A view of a whole buffer; the first call for a buffer decides whether it must be zero."""
        slot = (self.slots.of_gradient(reader, what) if gradient else
                self.slots.of_value(layer, what))
        key = layer, reader, which, what, slot, gradient, shape(box)
        if key not in self.buffers:
            self.buffers[key] = Buffer(layer, gradient, shape(box), zero)
        return View(self.buffers[key], shape(box))

    def _edge_value(self, e: Edge, what: str, box: Box) -> View:
        owner = e.producer if what == "out" else e.consumer
        return self._view(owner.name, what, box, e.consumer.name, e.which)

    def _edge_gradient(self, e: Edge, what: str, box: Box, zero: bool = False) -> View:
        return self._view(e.producer.name, what, box, e.consumer.name, e.which, gradient=True,
                          zero=zero)

    # -- outputs -----------------------------------------------------------------------------------
    def _output(self, layer: Layer) -> None:
        """Place the layer's output, unless a consumer has done so, and its partial sums."""
        blocks, config = self.blocks[layer.name], self.plan.configs[layer.name]
        if layer is self._last:
            return
        trains = self.training and layer.name in self.network.trained
        if blocks.out is None:
            blocks.out = self._view(layer.name, "out", self._owned(layer))
        if blocks.dout is None and trains:
            blocks.dout = self._view(layer.name, "out", self._owned(layer), gradient=True,
                                     zero=True)
        blocks.y, blocks.dy = blocks.out, blocks.dout
        if config.k > 1:
            partial = computed(self.network, layer, config, self.samples).box(self.rank)
            blocks.y = self._view(layer.name, "partial", partial)
            if config.scatter and blocks.dout is not None:
                blocks.dy = self._view(layer.name, "partial", partial, gradient=True)

    def _owned(self, layer: Layer) -> Box:
        config = self.plan.configs[layer.name]
        return owned(self.network, layer, config, self.samples).box(self.rank)

    def _shared(self, e: Edge, need: Box, out: View | None) -> View | None:
        """The part of the consumer's output (or output gradient) that can hold its input."""
        own, inset = self._owned(e.consumer), e.consumer.inset(self.network.input_shape(e.consumer))
        assert out is not None
        if inset:
            place = ((lo + i, hi + i) for (lo, hi), i in zip(need, (0, *inset), strict=True))
            return out.crop(tuple(place), own)
        return out.reshape(shape(need)) if items(own) == items(need) else None

    def _has_several_readers(self, producer: Layer) -> bool:
        return len(self.network.consumers[producer.name]) > 1

    # -- forward -----------------------------------------------------------------------------------
    def _input(self, e: Edge, need: Box, own: Box) -> View:
        """Place the consumer's input and, if it is the only reader, the producer's output."""
        before = self.blocks.get(e.producer.name)
        if before is None:
            return self._edge_value(e, "x", need)
        if self._has_several_readers(e.producer):
            if before.out is None:
                before.out = self._edge_value(e, "out", own)
            if e.kind is None:
                return before.out.crop(need, own)
            return self._edge_value(e, "x", need)
        reuse = self._overwritten(e, need)
        if e.kind is None:
            if reuse is not None and need == own:
                before.out = reuse
                return before.out
            # an elementwise layer's block may be only a part of the producer's block
            before.out = self._edge_value(e, "out", own)
            return before.out.crop(need, own)
        if e.kind is Kind.HALO and reuse is None and not contains(need, own):
            # the windows skip some owned rows: a hull holds both boxes
            hull = _hull(need, own)
            whole = self._edge_value(e, "hull", hull)
            before.out = whole.crop(own, hull)
            return whole.crop(need, hull)
        x = self._edge_value(e, "x", need) if reuse is None else reuse
        inside = e.kind is not Kind.REDISTRIBUTE and contains(need, own)
        before.out = x.crop(own, need) if inside else self._edge_value(e, "out", own)
        return x

    def _overwritten(self, e: Edge, need: Box) -> View | None:
        """The view of this input in the consumer's output, if the consumer works in place."""
        layer = e.consumer
        single = layer is not self._last and len(layer.inputs) == 1
        if single and in_place(layer, e.producer):
            return self._shared(e, need, self.blocks[layer.name].y)
        return None

    # -- backward ----------------------------------------------------------------------------------
    def _input_gradient(self, e: Edge, need: Box, own: Box) -> View:
        """Place the input's gradient and, for a single reader, the output's gradient."""
        before, kind = self.blocks.get(e.producer.name), e.adjoint_kind
        if before is None:
            return self._edge_gradient(e, "x", need)
        if self._has_several_readers(e.producer):
            return self._summand(e, before, need, own)
        reuse = self._overwritten_gradient(e, need)
        stays = kind in (None, Kind.ALLGATHER) and not e.total.kinds
        if stays and need != own and contains(own, need):
            # the rest of the block stays zero, or gets its neighbors' gradients
            before.dout = self._edge_gradient(e, "out", own, True)
            return before.dout.crop(need, own)
        separate = kind is None or (kind is Kind.HALO and reuse is None)
        if separate and not contains(need, own):
            # each box sticks out of the other along some axis: a hull holds both
            hull = _hull(need, own)
            whole = self._edge_gradient(e, "hull", hull, True)
            before.dout = whole.crop(own, hull)
            if kind is Kind.HALO:
                self.blocks[e.consumer.name].clears.append(before.dout)
            return whole.crop(need, hull)
        dx = self._edge_gradient(e, "x", need) if reuse is None else reuse
        if kind is Kind.ALLREDUCE:
            before.dout = dx
        elif kind in (None, Kind.HALO) and contains(need, own):
            before.dout = dx.crop(own, need)
        else:
            # these movements clear or overwrite the whole destination
            zero = kind not in (Kind.REDUCE_SCATTER, Kind.REDISTRIBUTE, Kind.ALLGATHER)
            before.dout = self._edge_gradient(e, "out", own, zero)
        return dx

    def _overwritten_gradient(self, e: Edge, need: Box) -> View | None:
        """The view of this input's gradient in the output's, if the consumer works in place."""
        layer = e.consumer
        if layer is not self._last and layer.in_place:
            return self._shared(e, need, self.blocks[layer.name].dy)
        return None

    def _summand(self, e: Edge, before: Blocks[View], need: Box, own: Box) -> View:
        """Place one of several readers' gradients: the first starts the sum, others add to it."""
        kind, blocks = e.adjoint_kind, self.blocks[e.consumer.name]
        stays = kind in (None, Kind.ALLREDUCE)
        if e.producer.name in self._summed:
            if not stays:
                blocks.arriving[e.which] = self._edge_gradient(e, "arriving", own)
            return self._edge_gradient(e, "x", need)
        self._summed.add(e.producer.name)
        before.dout = self._edge_gradient(e, "out", own)
        if stays and need == own:
            return before.dout
        if kind is None:
            blocks.begins[e.which] = before.dout
        else:
            blocks.arriving[e.which] = before.dout
        return self._edge_gradient(e, "x", need)


def _hull(a: Box, b: Box) -> Box:
    """The smallest box around two boxes; if one is empty, the other."""
    if not items(a) or not items(b):
        return a if items(a) else b
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in zip(a, b, strict=True))
