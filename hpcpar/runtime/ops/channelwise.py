"""Channelwise scales, shifts and slopes on a block."""

from __future__ import annotations

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import ChannelScale, ChannelShift, Channelwise, PReLU
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator


class ChannelwiseOp(Operator):
    """Base class: broadcasts channelwise weights over a block, and sums a block by channel."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Channelwise)
        self.layer = ctx.layer

    def _along(self, weights: Array) -> Array:
        """Channelwise weights, shaped to broadcast along a block."""
        return weights.reshape(-1, *(1,) * (self.y.ndim - 2))

    def _sum(self, samples: list[Array], out: Array) -> None:
        """Sum values [C, ...] over samples and pixels, and over channels if they share a weight."""
        total = sum(x.reshape(len(x), -1).sum(axis=1) for x in samples)
        out[...] = total.sum() if self.layer.shared else total


@operator(ChannelScale)
class ScaleOp(ChannelwiseOp):
    """y = w x."""

    def _forward(self) -> None:
        self.backend.multiply(self.x, self._along(self.parameters.weight), self.y)

    def _backward(self) -> None:
        self.backend.multiply(self.dy, self._along(self.parameters.weight), self.dx)

    def _backward_weight(self) -> None:
        self._sum([x * dy for x, dy in zip(self.x, self.dy, strict=True)],
                  self.parameters.dweight)


@operator(ChannelShift)
class ShiftOp(ChannelwiseOp):
    """y = x + w."""

    def _forward(self) -> None:
        self.backend.add(self.x, self._along(self.parameters.weight), self.y)

    def _backward(self) -> None:
        self._move(self.dy, self.dx)

    def _backward_weight(self) -> None:
        self._sum(list(self.dy), self.parameters.dweight)


@operator(PReLU)
class PReLUOp(ChannelwiseOp):
    """y = max(x, 0) + w min(x, 0)."""

    def _sloped(self, values: Array, out: Array) -> None:
        """Write `values` where x > 0, and w times `values` elsewhere."""
        w = self._along(self.parameters.weight)
        for x, v, y in zip(self.x, values, out, strict=True):
            y[...] = self.backend.xp.where(x > 0, v, w * v)

    def _forward(self) -> None:
        self._sloped(self.x, self.y)

    def _backward(self) -> None:
        self._sloped(self.dy, self.dx)

    def _backward_weight(self) -> None:
        minimum = self.backend.xp.minimum
        self._sum([minimum(x, 0) * dy for x, dy in zip(self.x, self.dy, strict=True)],
                  self.parameters.dweight)
