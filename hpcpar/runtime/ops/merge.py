"""Layers with several inputs on a block: sums, products and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hpcpar.kernels.interface import Array, Bound, address
from hpcpar.network.layers import Add, Concat, Multiply
from hpcpar.plan.boxes import items
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.steps import Compute, Op


@operator(Add)
class AddOp(Operator):
    """Sum of the inputs; y may share the first input's memory, and dx may share dy's."""

    def calls(self, step: Compute) -> Sequence[Bound]:
        return self._sums if step.op is Op.FORWARD else self._copies

    @cached_property
    def _sums(self) -> list[Bound]:
        first, second, *others = self.blocks.xs
        bind = self.backend.bind
        return [bind("add", first, second, self.y),
                *(bind("accumulate", x, self.y) for x in others)]

    @cached_property
    def _copies(self) -> list[Bound]:
        return [self.backend.bind("copy", self.dy, dx) for dx in self.blocks.dxs
                if dx is not None and address(dx) != address(self.dy)]

    def _forward(self) -> None:
        for call in self._sums:
            call()

    def _backward(self) -> None:
        for call in self._copies:
            call()


@operator(Multiply)
class MultiplyOp(Operator):
    """Product of two inputs of equal shape, or of an image and its channels' gate. The gate's
    gradient is a partial sum over this block's pixels.
    """

    def _forward(self) -> None:
        self.backend.multiply(self.x, self._like_image(self.blocks.xs[1]), self.y)

    def _backward(self) -> None:
        (x, factor), (dx, dfactor) = self.blocks.xs, self.blocks.dxs
        if dx is not None:
            self.backend.multiply(self.dy, self._like_image(factor), dx)
        if dfactor is None:
            return
        if dfactor.ndim == x.ndim:
            self.backend.multiply(self.dy, x, dfactor)
        else:
            self.backend.image_products(self.dy, x, dfactor)

    def _like_image(self, factor: Array) -> Array:
        return factor.reshape(factor.shape + (1,) * (self.x.ndim - factor.ndim))


@operator(Concat)
class ConcatOp(Operator):
    """The inputs' channels that this rank owns; those already in y's memory stay there."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Concat)
        self._parts: list[tuple[int, slice]] = []
        start = 0
        for which, (extent, need) in enumerate(zip(ctx.layer.channels, ctx.needs, strict=True)):
            if items(need):
                lo, hi = (start + channel - ctx.own[1][0] for channel in need[1])
                self._parts.append((which, slice(lo, hi)))
            start += extent

    def _forward(self) -> None:
        for which, channels in self._parts:
            self._move(self.blocks.xs[which], self.y[:, channels])

    def _backward(self) -> None:
        for which, channels in self._parts:
            dx = self.blocks.dxs[which]
            if dx is not None:
                self._move(self.dy[:, channels], dx)
