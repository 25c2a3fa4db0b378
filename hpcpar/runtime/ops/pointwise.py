"""ReLU, dropout and flatten on a block."""

from __future__ import annotations

from hpcpar.network.layers import Dropout
from hpcpar.plan.boxes import shape
from hpcpar.runtime.ops.arrays import same_start
from hpcpar.runtime.ops.base import Context, Operator


class ReLUOp(Operator):
    """max(x, 0), in place where the storage allows."""

    def forward(self) -> None:
        self.backend.relu_forward(self.blocks.x, self.blocks.y)

    def backward(self) -> None:
        self.backend.relu_backward(self.blocks.y, self.blocks.dy, self.blocks.dx)


class DropoutOp(Operator):
    """Inverted dropout; its mask is a function of (seed, iteration, layer, global index) alone."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.mask = ctx.backend.empty(shape(ctx.own), ctx.blocks.y.dtype)  # type: ignore[union-attr]

    def forward(self) -> None:
        ctx = self.ctx
        assert isinstance(ctx.layer, Dropout)
        if not ctx.training:
            if not self.empty and not same_start(self.blocks.x, self.blocks.y):
                self.backend.copy(self.blocks.x, self.blocks.y)
            return
        if self.empty:
            return
        start = tuple(lo for lo, _ in ctx.own)
        key = mask_key(ctx.seed, ctx.step, ctx.position)
        self.backend.dropout_mask(key, start, self.mask.shape, (ctx.batch, *ctx.input_shape),
                                  ctx.layer.rate, self.mask)
        self.backend.multiply(self.blocks.x, self.mask, self.blocks.y)

    def backward(self) -> None:
        if not self.empty:
            self.backend.multiply(self.blocks.dy, self.mask, self.blocks.dx)


def mask_key(seed: int, step: int, position: int) -> int:
    """A 64-bit key from the run's seed, the iteration and the layer's place (multiplied by large
    odd numbers to spread them).
    """
    return (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + (position + 1)
            * 0x94D049BB133111EB) % 2**64


class FlattenOp(Operator):
    """A change of shape; copies only where the storage could not share memory."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        b = ctx.blocks
        self._shared = b.x is not None and b.y is not None and same_start(b.x, b.y)
        self._shared_back = b.dx is None or same_start(b.dx, b.dy)

    def forward(self) -> None:
        if not self._shared and not self.empty:
            self.backend.copy(self.blocks.x.reshape(self.blocks.y.shape), self.blocks.y)  # type: ignore[union-attr]

    def backward(self) -> None:
        if not self._shared_back and not self.empty:
            self.backend.copy(self.blocks.dy.reshape(self.blocks.dx.shape), self.blocks.dx)  # type: ignore[union-attr]
