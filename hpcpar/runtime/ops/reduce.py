"""Reductions along axes of a block."""

from __future__ import annotations

import math

from hpcpar.network.layers import AXES, Reduce
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator


@operator(Reduce)
class ReduceOp(Operator):
    """Sum, mean or maximum, sample by sample."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Reduce)
        self.how = ctx.layer.how
        letters = AXES[len(ctx.input_shape) + 1][1:]
        #: Reduced axes of a sample.
        self._axes = tuple(i for i, letter in enumerate(letters) if letter in ctx.layer.axes)
        count = math.prod(ctx.input_shape[i] for i in self._axes)
        self._divisor = count if self.how == "mean" else 1

    def _forward(self) -> None:
        reduce = "max" if self.how == "first" else self.how
        for x, y in zip(self.x, self.y, strict=True):
            y[...] = getattr(x, reduce)(axis=self._axes, keepdims=True)

    def _backward(self) -> None:
        if self.how in ("sum", "mean"):
            for dy, dx in zip(self.dy, self.dx, strict=True):
                dx[...] = dy / self._divisor
            return
        for x, y, dy, dx in zip(self.x, self.y, self.dy, self.dx, strict=True):
            largest = x == y
            if self.how == "first":
                largest &= largest.cumsum(axis=self._axes[0]) == 1
            dx[...] = largest * (dy / largest.sum(axis=self._axes, keepdims=True))
