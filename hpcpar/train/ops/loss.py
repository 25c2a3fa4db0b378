"""The losses on a block: this rank's share of the sum, and the gradient that starts the backward pass."""

from __future__ import annotations

from hpcpar.network.layers import SoftmaxCrossEntropy
from hpcpar.train.ops.base import Op


class LossOp(Op):
    """Computes loss and gradient together in the forward step; `sums` becomes (loss, correct samples) of this block."""

    def forward(self) -> None:
        ctx, b = self.ctx, self.blocks
        ctx.sums[:] = 0
        if self.empty:
            return
        if isinstance(ctx.layer, SoftmaxCrossEntropy):
            loss, correct = self.backend.softmax_cross_entropy(b.x, ctx.labels, 1.0 / ctx.batch, b.dx)
            ctx.sums[1] = correct
        else:
            loss = self.backend.logistic_cross_entropy(b.x, ctx.labels, ctx.own[1][0], 1.0 / ctx.batch, b.dx)
        ctx.sums[0] = loss / ctx.batch
