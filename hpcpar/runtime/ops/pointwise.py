"""Activation functions, dropout and flatten on a block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hpcpar.kernels.interface import Array, Bound
from hpcpar.network.layers import Activation, Dropout, Flatten
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.steps import Compute, Op


@operator(Activation)
class ActivationOp(Operator):
    """y = f(x), in place where x and y share memory."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Activation)
        self.layer = ctx.layer

    def calls(self, step: Compute) -> Sequence[Bound]:
        return (self._forward,) if step.op is Op.FORWARD else (self._backward,)

    @cached_property
    def _forward(self) -> Bound:
        f = self.layer
        return self.backend.bind("activation_forward", f.kind, f.numbers, self.x, self.y)

    @cached_property
    def _backward(self) -> Bound:
        f = self.layer
        kept = self.x if "input" in f.backward_reads else self.y
        return self.backend.bind("activation_backward", f.kind, f.numbers, kept, self.dy, self.dx)


@operator(Dropout)
class DropoutOp(Operator):
    """Inverted dropout; the mask depends only on seed, iteration, layer and global index."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Dropout)
        self.layer = ctx.layer
        #: Number of leading axes with independent decisions: samples, samples and channels, or all.
        self.axes = {"sample": 1, "channel": 2, "value": len(ctx.own)}[self.layer.unit]
        self.mask = ctx.backend.empty(shape(ctx.own[:self.axes]), self.y.dtype)

    def _forward(self) -> None:
        ctx = self.ctx
        if not ctx.training:
            self._move(self.x, self.y)
            return
        start = tuple(lo for lo, _ in ctx.own[:self.axes])
        extent = (ctx.batch, *ctx.input_shape)[:self.axes]
        key = ctx.key(lambda step: mask_key(ctx.seed, step, ctx.position))
        self.backend.dropout_mask(key, start, self.mask.shape, extent, self.layer.rate, self.mask)
        self.backend.multiply(self.x, self._factor(), self.y)

    def _backward(self) -> None:
        self.backend.multiply(self.dy, self._factor(), self.dx)

    def _factor(self) -> Array:
        return self.mask.reshape(self.mask.shape + (1,) * (self.y.ndim - self.axes))


def mask_key(seed: int, step: int, position: int) -> int:
    """A 64-bit key for one layer's mask in one iteration; large odd factors spread keys."""
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + (position + 1)
            * 0x94D049BB133111EB) % 2**64


@operator(Flatten)
class FlattenOp(Operator):
    """A change of shape; copies only where x and y do not share memory."""

    def _forward(self) -> None:
        self._move(self.x.reshape(self.y.shape), self.y)

    def _backward(self) -> None:
        self._move(self.dy.reshape(self.dx.shape), self.dx)
