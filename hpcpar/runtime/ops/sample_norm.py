"""Normalization of each sample by statistics of its channel groups, on a block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import GroupNorm, LayerNorm
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.base import Context
from hpcpar.runtime.ops.norm import NormalizationOp
from hpcpar.runtime.ops.registry import operator

#: Items per chunk of samples in layer normalization's weight gradient.
_CHUNK_ITEMS = 1 << 16


@operator(GroupNorm)
class GroupNormOp(NormalizationOp):
    """Group normalization: the kernels of batch normalization on every sample's channels, each with
    the mean and variance of its group.

    `statistics` and `backward_weight` compute this block's sums. The ranks that share a group add
    them before `forward` and before `backward`.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, GroupNorm | LayerNorm)
        channels = ctx.input_shape[0]
        #: Channels of a group, and items behind each mean and variance.
        self.size = channels // ctx.layer.groups
        self.count = self.size * math.prod(ctx.input_shape[1:])
        sums = shape(ctx.moments)
        self.moments, self.moments_gradient = (ctx.backend.zeros(sums, np.float64)
                                               for _ in range(2))
        self.mean, self.inv_std = (ctx.backend.zeros(sums[:2], np.float64) for _ in range(2))
        first, last = (c - ctx.moments[1][0] * self.size for c in ctx.own[1])
        self._own = slice(first, last)

    def statistics(self) -> None:
        """Compute `moments` of this rank's block; zero where the block is empty."""
        self.moments[...] = 0
        if not self.empty:
            sums = self._channel_sums()
            for (x,), (out,) in _pieces((self.x,), (sums,)):
                self.backend.channel_moments(x, out)
            self._add_groups(sums, self.moments)

    def forward(self) -> None:
        if not self.ctx.recomputes:
            self.backend.batchnorm_statistics(
                self.moments.reshape(-1, 2), self.count, self.eps, self.mean.reshape(-1),
                self.inv_std.reshape(-1), None, 0.0)
        super().forward()

    def _forward(self) -> None:
        w, b = self._weights()
        numbers = (self._of_channels(self.mean), self._of_channels(self.inv_std),
                   self._repeated(w), self._repeated(b))
        for (x, y), (mean, inv_std, weight, bias) in _pieces((self.x, self.y), numbers):
            self.backend.batchnorm_forward(x, mean, inv_std, weight, bias, y)

    def backward_weight(self) -> None:
        """Compute `moments_gradient` of this rank's block, and the gradients of weight and bias."""
        self.moments_gradient[...] = 0
        if not self.empty:
            self._backward_weight()
        elif self.affine:
            self.parameters.grad[...] = 0

    def _backward_weight(self) -> None:
        sums, (w, _) = self._channel_sums(), self._weights()
        numbers = (self._of_channels(self.mean), self._of_channels(self.inv_std), sums)
        for (x, dy), (mean, inv_std, out) in _pieces((self.x, self.dy), numbers):
            self.backend.channel_moments_backward(x, dy, mean, inv_std, out)
        self._add_groups(sums * w[:, None], self.moments_gradient)
        if self.affine:
            p, total = self.parameters, sums.sum(axis=0)
            self.backend.copy(total[:, 0], p.dbias)
            self.backend.copy(total[:, 1], p.dweight)

    def _backward(self) -> None:
        self._input_gradient(self.dy, self._weights()[0])

    def _input_gradient(self, dy: Array, w: Array) -> None:
        numbers = (*map(self._of_channels, (self.mean, self.inv_std, self.moments_gradient)),
                   self._repeated(w))
        for (x, g, dx), (mean, inv_std, sums, weight) in _pieces((self.x, dy, self.dx), numbers):
            self.backend.batchnorm_backward(x, g, mean, inv_std, weight, sums, self.count, dx)

    # -- values of samples and channels ------------------------------------------------------------
    def _channel_sums(self) -> Array:
        """An empty array for two sums of every sample and own channel."""
        return self.backend.empty((*shape(self.ctx.own)[:2], 2), np.float64)

    def _of_channels(self, of_groups: Array) -> Array:
        """Spread [samples, groups, ...] over the own channels of each group; contiguous."""
        xp = self.backend.xp
        return xp.ascontiguousarray(xp.repeat(of_groups, self.size, axis=1)[:, self._own])

    def _add_groups(self, sums: Array, out: Array) -> None:
        """Add sums [samples, own channels, 2] up by group."""
        samples, groups, _ = out.shape
        whole = self.backend.zeros((samples, groups * self.size, 2), np.float64)
        whole[:, self._own] = sums
        out[...] = whole.reshape(samples, groups, self.size, 2).sum(axis=2)

    def _repeated(self, of_channels: Array) -> Array:
        """Repeat [own channels] for each sample; contiguous."""
        xp = self.backend.xp
        return xp.ascontiguousarray(xp.broadcast_to(of_channels, shape(self.ctx.own)[:2]))


@operator(LayerNorm)
class LayerNormOp(GroupNormOp):
    """Layer normalization: one unweighted group, then weights in the shape of a sample."""

    def _weights(self) -> tuple[Array, Array]:
        return self._plain()

    def _part(self, rows: Array) -> Array:
        """This block's part of weights or gradients [own channels, ...]."""
        index = (slice(None), *(slice(*interval) for interval in self.ctx.own[2:]))
        return rows[index]

    def _forward(self) -> None:
        super()._forward()
        if self.affine:
            p = self.parameters
            self.backend.multiply(self.y, self._part(p.weight), self.y)
            self.backend.add(self.y, self._part(p.bias), self.y)

    def _backward_weight(self) -> None:
        if not self.affine:
            super()._backward_weight()
            return
        p, axes = self.parameters, tuple(range(1, self.x.ndim))
        p.grad[...] = 0
        w, dw, db = map(self._part, (p.weight, p.dweight, p.dbias))
        for chunk in self._chunks():
            factor = self.inv_std[chunk]
            scale, shift = (a.astype(self.x.dtype).reshape(-1, *[1] * len(axes))
                            for a in (factor, -self.mean[chunk] * factor))
            normal = self.x[chunk] * scale + shift
            dy = self.dy[chunk]
            db += dy.sum(axis=0)
            dw += (dy * normal).sum(axis=0)
            dy = dy * w
            self.moments_gradient[chunk, 0, 0] = dy.sum(axis=axes, dtype=np.float64)
            self.moments_gradient[chunk, 0, 1] = (dy * normal).sum(axis=axes, dtype=np.float64)

    def _chunks(self) -> Iterator[slice]:
        """Samples of each chunk."""
        count = max(1, _CHUNK_ITEMS // math.prod(self.x.shape[1:]))
        return (slice(i, i + count) for i in range(0, len(self.x), count))

    def _backward(self) -> None:
        dy = self.dy
        if self.affine:
            self.backend.multiply(dy, self._part(self.parameters.weight), self.dx)
            dy = self.dx
        self._input_gradient(dy, self._weights()[0])


def _pieces(blocks: Sequence[Array],
            numbers: Sequence[Array]) -> Iterator[tuple[list[Array], list[Array]]]:
    """Blocks [N, C, ...] as pieces [1, K, ...], each with the values [K, ...] of its K channels.

    Samples that are contiguous in memory make one piece; else each sample is a piece.
    """
    if all(len(a) == 1 or a.strides[0] == a.shape[1] * a.strides[1] for a in blocks):
        yield ([a.reshape(1, -1, *a.shape[2:]) for a in blocks],
               [a.reshape(-1, *a.shape[2:]) for a in numbers])
        return
    for i in range(len(blocks[0])):
        yield [a[i:i + 1] for a in blocks], [a[i] for a in numbers]
