"""Normalization on a block: across channels, and by batch statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hpcpar.kernels.bfloat16 import wide_type
from hpcpar.kernels.interface import Array, Bound
from hpcpar.network.layers import LRN, BatchNorm, ChannelNorm, Normalization
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.steps import Compute, Op, Phase


@operator(LRN)
class LRNOp(Operator):
    """Local response normalization; `offset` is the first owned channel among the needed."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, LRN)
        self.layer = ctx.layer
        self.offset = ctx.own[1][0] - ctx.need[1][0]
        self.scale = ctx.backend.empty(shape(ctx.own), self.y.dtype)

    def _forward(self) -> None:
        a = self.layer
        self.backend.lrn_forward(self.x, self.offset, a.size, a.alpha, a.beta, a.k, self.y,
                                 self.scale)

    def _backward(self) -> None:
        a = self.layer
        self.backend.lrn_backward(self.x, self.y, self.scale, self.dy, self.offset, a.size,
                                  a.alpha, a.beta, self.dx)


class NormalizationOp(Operator):
    """Base class of normalizations by mean and variance."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Normalization)
        self.affine, self.eps = ctx.layer.affine, ctx.layer.eps

    def _weights(self) -> tuple[Array, Array]:
        """Weight and bias [own channels]; ones and zeros for a layer without them."""
        return (self.parameters.weight, self.parameters.bias) if self.affine else self._plain()

    def _plain(self) -> tuple[Array, Array]:
        """Ones and zeros [own channels]."""
        channels = shape(self.ctx.own)[1]
        one, zero = (self.backend.zeros((channels,), wide_type(self.y)) for _ in range(2))
        one[...] = 1
        return one, zero


@operator(BatchNorm)
class BatchNormOp(NormalizationOp):
    """Batch normalization with synchronized statistics of the whole batch, or with the local
    statistics of this rank's block (`ctx.local_statistics`).

    For synchronized statistics, `statistics` and `backward_weight` compute this block's sums. The
    ranks that share a channel add them before `forward`, and before `backward` or `finish_weight`.
    Every forward pass of training updates the running statistics, except on a rank whose local
    block is empty.
    """

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, BatchNorm)
        self.layer = ctx.layer
        own = shape(ctx.own)
        channels = own[1]
        #: Items per channel behind the statistics.
        self.count = own[0] * math.prod(own[2:]) if ctx.local_statistics else ctx.batch * math.prod(
            ctx.input_shape[1:])
        self.moments, self.moments_gradient = (ctx.backend.zeros((channels, 2), np.float64)
                                               for _ in range(2))
        self.mean, self.inv_std = (ctx.backend.zeros((channels,), np.float64) for _ in range(2))
        #: `moments_gradient` times the weight; the forward pass has used its moments by then.
        self._sums = self.moments

    def calls(self, step: Compute) -> Sequence[Bound]:
        local = self.ctx.local_statistics
        if step.op is Op.STATISTICS:
            return (self._moments,)
        if step.op is Op.BACKWARD_WEIGHT:
            return (self._moments_backward, self._gradients)[:1 + local]
        if step.op is Op.BACKWARD:
            return (self._gradients, self._input_gradient)[local:]
        return (self._statistics, self._forward)[step.phase is Phase.RECOMPUTE:]

    def statistics(self) -> None:
        """Compute `moments` of this rank's block; zero where the block is empty."""
        if self.empty:
            self.moments[...] = 0
        else:
            self._moments()

    @cached_property
    def _moments(self) -> Bound:
        return self.backend.bind("channel_moments", self.x, self.moments)

    def forward(self) -> None:
        ctx = self.ctx
        if not ctx.training:
            self._running()
        elif self.count and not ctx.recomputes:
            bound = self._statistics if ctx.momentum is None else self._statistics_by(ctx.momentum)
            bound()
        super().forward()

    @cached_property
    def _running(self) -> Bound:
        return self.backend.bind("batchnorm_running", self.parameters.buffers, self.layer.eps,
                                 self.mean, self.inv_std)

    @cached_property
    def _statistics(self) -> Bound:
        return self._statistics_by(self.layer.momentum)

    def _statistics_by(self, momentum: float) -> Bound:
        return self.backend.bind("batchnorm_statistics", self.moments, self.count, self.layer.eps,
                                 self.mean, self.inv_std, self.parameters.buffers, momentum)

    @cached_property
    def _forward(self) -> Bound:
        return self.backend.bind("batchnorm_forward", self.x, self.mean, self.inv_std,
                                 *self._weights(), self.y)

    def backward_weight(self) -> None:
        """Compute `moments_gradient`; with local statistics, also the weight gradient."""
        if self.empty:
            self.moments_gradient[...] = 0
        else:
            self._moments_backward()
        if self.ctx.local_statistics:
            self.finish_weight()

    @cached_property
    def _moments_backward(self) -> Bound:
        return self.backend.bind("channel_moments_backward", self.x, self.dy, self.mean,
                                 self.inv_std, self.moments_gradient)

    def _backward(self) -> None:
        if not self.ctx.local_statistics:
            self.finish_weight()
        self._input_gradient()

    @cached_property
    def _input_gradient(self) -> Bound:
        return self.backend.bind("batchnorm_backward", self.x, self.dy, self.mean, self.inv_std,
                                 self._weights()[0], self._sums, self.count, self.dx)

    def finish_weight(self) -> None:
        """With synchronized statistics, take the gradient from the summed moments."""
        self._gradients()
        if not self.ctx.training:  # running statistics do not depend on the input
            self._sums[...] = 0

    @cached_property
    def _gradients(self) -> Bound:
        p = self.parameters if self.affine else None
        return self.backend.bind("batchnorm_gradients", self.moments_gradient, self._weights()[0],
                                 self._sums, p and p.dbias, p and p.dweight)


@operator(ChannelNorm)
class ChannelNormOp(NormalizationOp):
    """Normalization across the channels of each pixel. Where channels are cut, a rank reads all of
    them, and its input gradients are partial sums.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        first, last = (channel - ctx.need[1][0] for channel in ctx.own[1])
        self._own = slice(first, last)

    def _normal(self, x: Array) -> tuple[Array, Array]:
        """A normalized sample [all channels, ...], and 1 / deviation at each pixel."""
        centered = x - x.mean(axis=0)
        inv_std = 1 / self.backend.xp.sqrt((centered * centered).mean(axis=0) + self.eps)
        return centered * inv_std, inv_std

    def _rows(self) -> tuple[Array, Array]:
        """Weight and bias, shaped to broadcast along a sample."""
        weight, bias = (a.reshape(-1, *(1,) * (self.y.ndim - 2)) for a in self._weights())
        return weight, bias

    def _forward(self) -> None:
        weight, bias = self._rows()
        for x, y in zip(self.x, self.y, strict=True):
            y[...] = self._normal(x)[0][self._own] * weight + bias

    def _backward(self) -> None:
        weight, _ = self._rows()
        for x, dy, dx in zip(self.x, self.dy, self.dx, strict=True):
            normal, inv_std = self._normal(x)
            g = dy * weight
            along = (g * normal[self._own]).sum(axis=0) / len(x)
            dx[...] = -(normal * along + g.sum(axis=0) / len(x)) * inv_std
            dx[self._own] += g * inv_std

    def _backward_weight(self) -> None:
        p = self.parameters
        p.grad[...] = 0
        for x, dy in zip(self.x, self.dy, strict=True):
            normal, axes = self._normal(x)[0][self._own], tuple(range(1, dy.ndim))
            p.dweight += (dy * normal).sum(axis=axes)
            if p.dbias is not None:
                p.dbias += dy.sum(axis=axes)
