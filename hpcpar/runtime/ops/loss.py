"""The losses on a block: this rank's share of the sum, and the gradient that starts the backward
pass.
"""

from __future__ import annotations

from hpcpar.network.layers import MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.runtime.ops.base import Operator


class LossOp(Operator):
    """Computes loss and gradient together in the forward step; `sums` becomes (loss, correct
    samples) of this block.

    Both are scaled by `ctx.scale`, the mean squared error also by 1 / outputs. Labels are classes
    [N], -1 where a sample does not count; of the mean squared error targets [N, own outputs], NaN
    where they do not count.
    """

    def forward(self) -> None:
        ctx, b = self.ctx, self.blocks
        ctx.sums[:] = 0
        if self.empty:
            return
        scale = ctx.scale
        if isinstance(ctx.layer, SoftmaxCrossEntropy):
            loss, correct = self.backend.softmax_cross_entropy(b.x, ctx.labels, scale, b.dx)
            ctx.sums[1] = correct
        elif isinstance(ctx.layer, MeanSquaredError):
            scale /= ctx.input_shape[0]
            loss = self.backend.mean_squared_error(b.x, ctx.labels, scale, b.dx)
        else:
            loss = self.backend.logistic_cross_entropy(b.x, ctx.labels, ctx.own[1][0], scale, b.dx)
        ctx.sums[0] = loss * scale
