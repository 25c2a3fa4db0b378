"""The losses on a block: this rank's share of the sum, and the gradient that starts the backward
pass.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.runtime.ops.base import Operator


class LossOp(Operator):
    """Computes loss and gradient together in the forward step; `sums` becomes (loss, correct
    samples) of this block.

    Both are scaled by 1 / pixels, the loss by `ctx.scale`, the mean squared error also by 1 /
    outputs. Labels are classes [N, ...], -1 where a sample does not count; of the mean squared
    error targets [N, own outputs, ...], NaN where they do not count.
    """

    def forward(self) -> None:
        ctx = self.ctx
        gradient = self.dx
        ctx.sums[:] = 0
        if self.empty:
            return
        pixels = math.prod(ctx.input_shape[1:])
        scale = ctx.scale / pixels
        sums = ctx.sums
        x, labels = self._rows(self.x), ctx.labels
        dx = gradient if gradient.ndim == 2 else self.backend.empty(x.shape, x.dtype)
        if isinstance(ctx.layer, SoftmaxCrossEntropy):
            self.backend.softmax_cross_entropy(x, labels.reshape(-1), scale, dx, sums)
            self.backend.scale(sums[1:], 1 / pixels)
            if ctx.counts is not None:
                self._count(x.argmax(axis=1), labels.reshape(-1), ctx.counts)
        elif isinstance(ctx.layer, MeanSquaredError):
            scale /= ctx.input_shape[0]
            self.backend.mean_squared_error(x, self._rows(labels), scale, dx, sums)
        else:
            self.backend.logistic_cross_entropy(x, labels, ctx.own[1][0], scale, dx, sums)
        if gradient.ndim > 2:
            to = self.backend.xp.moveaxis(gradient, 1, -1)
            self.backend.copy(dx.reshape(to.shape), to)
        self.backend.scale(sums[:1], scale)

    def _count(self, predicted: Array, labels: Array, counts: NDArray[np.int64]) -> None:
        """Add this block's pixels by class: labels, predictions, and both at once."""
        xp, host = self.backend.xp, np.empty(counts.shape[1] + 1, np.int64)
        known = labels >= 0
        each = ((labels, known), (predicted, known), (labels, labels == predicted))
        for row, (classes, keep) in zip(counts, each, strict=True):
            found = xp.bincount(xp.where(keep, classes, -1) + 1, minlength=len(host))
            self.backend.to_host(found, host)
            row += host[1:]

    def _rows(self, block: Array) -> Array:
        """A matrix with a row of channels for each pixel of [N, C, ...]."""
        if block.ndim == 2:
            return block
        pixels = self.backend.xp.moveaxis(block, 1, -1)
        return self.backend.xp.ascontiguousarray(pixels).reshape(-1, block.shape[1])
