"""Losses on a block: this rank's share of the loss, and the gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import (
    DiceCrossEntropy,
    LogisticCrossEntropy,
    MeanSquaredError,
    Outputs,
    SoftmaxCrossEntropy,
)
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator

#: Added to the numerator and denominator of a Dice coefficient, as in MONAI and nnU-Net.
DICE_EPS = 1e-5


class LossOp(Operator):
    """Computes loss and gradient together in the forward step; `ctx.sums` becomes this block's
    (loss, correct samples).

    Labels are classes [N, ...]; -1 does not count. Targets are numbers [N, own outputs, ...]; NaN
    does not count.
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
        if ctx.gradient_scale != 1:
            self.backend.scale(dx, ctx.gradient_scale)
        if gradient.ndim > 2:
            to = self.backend.xp.moveaxis(gradient, 1, -1)
            self.backend.copy(dx.reshape(to.shape), to)
        self.backend.scale(ctx.sums[:1], scale)

    @property
    def means_over(self) -> int:
        """The number of terms per sample in the loss's mean: pixels."""
        return math.prod(self.ctx.input_shape[1:])

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        """Compute `ctx.sums` before scaling, and the gradient times `scale`; x and dx are [rows,
        own outputs] with a row for each sample or pixel.
        """
        raise NotImplementedError

    def _rows(self, block: Array) -> Array:
        """A block [N, C, ...] as a matrix with a row of channels for each pixel."""
        if block.ndim == 2:
            return block
        pixels = self.backend.xp.moveaxis(block, 1, -1)
        return self.backend.xp.ascontiguousarray(pixels).reshape(-1, block.shape[1])


@operator(SoftmaxCrossEntropy)
class SoftmaxCrossEntropyOp(LossOp):
    """Softmax cross-entropy; counts correct samples, and pixels by class."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, SoftmaxCrossEntropy)
        self.smoothing = ctx.layer.label_smoothing

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        ctx, labels = self.ctx, self.ctx.labels.reshape(-1)
        self.backend.softmax_cross_entropy(x, labels, scale, dx, ctx.sums)
        if self.smoothing:
            target, counts = self._one_hot(labels, x), (labels >= 0).astype(x.dtype)
            change = self.smoothing * (target - counts[:, None] / x.shape[1])
            ctx.sums[:1] += (change * x).sum(dtype=np.float64)
            dx += scale * change
        self.backend.scale(ctx.sums[1:], 1 / self.means_over)
        if ctx.counts is not None:
            self._count(x.argmax(axis=1), labels, ctx.counts)

    def _one_hot(self, labels: Array, x: Array) -> Array:
        """[rows, classes] True where a row's label is the class."""
        return labels[:, None] == self.backend.xp.arange(x.shape[1])

    def _count(self, predicted: Array, labels: Array, counts: Array) -> None:
        """Add this block's pixels to `counts`: by label, by prediction, and where both agree."""
        xp, classes = self.backend.xp, counts.shape[1]
        pairs = xp.where(labels >= 0, labels * classes + predicted, classes**2)
        confusion = xp.bincount(pairs, minlength=classes**2 + 1)[:-1].reshape(classes, classes)
        counts += xp.stack((confusion.sum(axis=1), confusion.sum(axis=0), confusion.diagonal()))


@operator(DiceCrossEntropy)
class DiceCrossEntropyOp(SoftmaxCrossEntropyOp):
    """Cross-entropy plus Dice loss of each sample.

    `statistics` sums over this block's pixels; ranks add their sums before `forward`.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.moments = ctx.backend.zeros(shape(ctx.moments), np.float64)

    def statistics(self) -> None:
        """Compute `moments`: sums of p t and p + t, with probability p and label t."""
        self.moments[...] = 0
        if not self.empty:
            for sums, (p, t) in zip(self.moments, self._samples(), strict=True):
                sums[:, 0] = (p * t).sum(axis=0, dtype=np.float64)
                sums[:, 1] = p.sum(axis=0, dtype=np.float64) + t.sum(axis=0)

    def _samples(self) -> Iterator[tuple[Array, Array]]:
        """(p, t) [own pixels, classes] per sample: softmax (0 if ignored), one-hot labels."""
        xp = self.backend.xp
        for i, labels in enumerate(self.ctx.labels):
            rows, flat = self._rows(self.x[i:i + 1]), labels.reshape(-1)
            p = xp.exp(rows - rows.max(axis=1, keepdims=True))
            p *= (flat >= 0)[:, None] / p.sum(axis=1, keepdims=True)
            yield p, self._one_hot(flat, rows)

    def _loss(self, x: Array, scale: float, dx: Array) -> None:
        super()._loss(x, scale, dx)
        above, below = 2 * self.moments[..., 0] + DICE_EPS, self.moments[..., 1] + DICE_EPS
        # a sample's Dice loss counts once: each rank adds it in proportion to its pixels
        pixels = math.prod(shape(self.ctx.own)[2:])
        self.ctx.sums[:1] += self.ctx.share * pixels * (1 - above / below).mean(axis=1).sum()
        per_pixel, per_label = (above / below**2).astype(x.dtype), (2 / below).astype(x.dtype)
        scale *= self.ctx.share * self.means_over / x.shape[1]
        gradients = dx.reshape(len(self.moments), pixels, -1)
        for i, (p, t) in enumerate(self._samples()):
            g = p * (per_pixel[i] - t * per_label[i])
            gradients[i] += scale * (g - p * g.sum(axis=1, keepdims=True))


@operator(LogisticCrossEntropy)
class LogisticCrossEntropyOp(LossOp):
    """Cross-entropy of this rank's logistic units."""

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
    """Passes the outputs to the caller, and gets their gradients from it."""

    takes_bfloat16 = True

    def forward(self) -> None:
        assert self.ctx.caller is not None
        self.ctx.caller.take(self.ctx.part, self.blocks.xs)

    def backward(self) -> None:
        assert self.ctx.caller is not None
        gradients = self.ctx.caller.gradients(self.ctx.part)
        for dx, gradient in zip(self.blocks.dxs, gradients, strict=True):
            if dx is not None:
                self.backend.copy(self.backend.upload(gradient), dx)
