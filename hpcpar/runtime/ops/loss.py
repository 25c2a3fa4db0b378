"""The losses on a block: this rank's share of the sum, and the gradient that starts the backward
pass.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import (
    LogisticCrossEntropy,
    MeanSquaredError,
    Outputs,
    SoftmaxCrossEntropy,
)
from hpcpar.runtime.ops.base import Operator
from hpcpar.runtime.ops.registry import operator


class LossOp(Operator):
    """Computes loss and gradient together in the forward step; `sums` becomes (loss, correct
    samples) of this block.

    Labels are classes [N, ...], -1 where a sample does not count; targets are numbers [N, own
    outputs, ...], NaN where they do not count.
    """

    def forward(self) -> None:
        ctx, gradient = self.ctx, self.dx
        ctx.sums[:] = 0
        if self.empty:
            return
        x = self._rows(self.x)
        dx = gradient if gradient.ndim == 2 else self.backend.empty(x.shape, x.dtype)
        scale = ctx.scale / self.means_over
        self._loss(x, scale, dx)
        if gradient.ndim > 2:
            to = self.backend.xp.moveaxis(gradient, 1, -1)
            self.backend.copy(dx.reshape(to.shape), to)
        self.backend.scale(ctx.sums[:1], scale)

    @property
    def means_over(self) -> int:
        """Terms of a sample that the loss is the mean of: pixels."""
        return math.prod(self.ctx.input_shape[1:])

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        """`ctx.sums` before scaling, and the gradient times `scale`.

        Parameters
        ----------
        x, dx : array
            [rows, own outputs]: a row for each sample or pixel.
        """
        raise NotImplementedError

    def _rows(self, block: Array) -> Array:
        """A matrix with a row of channels for each pixel of [N, C, ...]."""
        if block.ndim == 2:
            return block
        pixels = self.backend.xp.moveaxis(block, 1, -1)
        return self.backend.xp.ascontiguousarray(pixels).reshape(-1, block.shape[1])


@operator(SoftmaxCrossEntropy)
class SoftmaxCrossEntropyOp(LossOp):
    """Cross-entropy of the softmax; counts correct samples, and pixels by class."""

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        ctx, labels = self.ctx, self.ctx.labels.reshape(-1)
        self.backend.softmax_cross_entropy(x, labels, scale, dx, ctx.sums)
        self.backend.scale(ctx.sums[1:], 1 / self.means_over)
        if ctx.counts is not None:
            self._count(x.argmax(axis=1), labels, ctx.counts)

    def _count(self, predicted: Array, labels: Array, counts: NDArray[np.int64]) -> None:
        """Add this block's pixels by class: labels, predictions, and both at once."""
        xp, host = self.backend.xp, np.empty(counts.shape[1] + 1, np.int64)
        known = labels >= 0
        each = ((labels, known), (predicted, known), (labels, labels == predicted))
        for row, (classes, keep) in zip(counts, each, strict=True):
            found = xp.bincount(xp.where(keep, classes, -1) + 1, minlength=len(host))
            self.backend.to_host(found, host)
            row += host[1:]


@operator(LogisticCrossEntropy)
class LogisticCrossEntropyOp(LossOp):
    """Cross-entropies of this rank's logistic units."""

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        ctx = self.ctx
        self.backend.logistic_cross_entropy(x, ctx.labels, ctx.own[1][0], scale, dx, ctx.sums)


@operator(MeanSquaredError)
class MeanSquaredErrorOp(LossOp):
    """Mean squared error of this rank's outputs."""

    @property
    def means_over(self) -> int:
        return math.prod(self.ctx.input_shape)

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        self.backend.mean_squared_error(x, self._rows(self.ctx.labels), scale, dx, self.ctx.sums)


@operator(Outputs)
class OutputsOp(Operator):
    """Hands the outputs to the caller, and takes their gradients from it."""

    def forward(self) -> None:
        assert self.ctx.caller is not None
        self.ctx.caller.take(self.ctx.part, self.blocks.xs)

    def backward(self) -> None:
        assert self.ctx.caller is not None
        given = self.ctx.caller.gradients(self.ctx.part)
        for dx, gradient in zip(self.blocks.dxs, given, strict=True):
            if dx is not None:
                self.backend.to_device(gradient, dx)
