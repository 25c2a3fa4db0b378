"""Fully connected layer on a block: the 1.5D products' local factors."""

from __future__ import annotations

from hpcpar.runtime.ops.base import Context, Operator


class LinearOp(Operator):
    """Y = X W^T + b for this rank's samples and output features, over the input features that it
    has (k: a partial sum).
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert ctx.parameters is not None
        self.parameters = ctx.parameters

    def forward(self) -> None:
        if self.empty:
            return
        p, b = self.parameters, self.blocks
        self.backend.gemm(b.x, p.weight, b.y, transpose_b=True, tick=self.ctx.tick)
        if p.bias is not None:
            self.backend.add_bias(b.y, p.bias)

    def backward(self) -> None:
        dx = self.blocks.dx
        assert dx is not None
        if self.empty:
            dx[...] = 0
        else:
            self.backend.gemm(self.blocks.dy, self.parameters.weight, dx, tick=self.ctx.tick)

    def backward_weight(self) -> None:
        p, b = self.parameters, self.blocks
        if self.empty:
            p.grad[...] = 0
            return
        self.backend.gemm(b.dy, b.x, p.dweight, transpose_a=True, tick=self.ctx.tick)
        if p.dbias is not None:
            self.backend.sum_samples(b.dy, p.dbias)
