"""Reductions along axes of a block."""

from __future__ import annotations

import math

from hpcpar.kernels.interface import Array
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
        self._count = math.prod(ctx.input_shape[i] for i in self._axes)

    def _forward(self) -> None:
        reduce = "max" if self.how == "first" else self.how
        for x, y in zip(self.x, self.y, strict=True):
            y[...] = getattr(x, reduce)(axis=self._axes, keepdims=True)

    def _backward(self) -> None:
        for x, y, dy, dx in zip(*self._read(), self.dy, self.dx, strict=True):
            if self.how in ("sum", "mean"):
                dx[...] = dy if self.how == "sum" else dy / self._count
                continue
            largest = x == y
            if self.how == "first":
                largest &= largest.cumsum(axis=self._axes[0]) == 1
            dx[...] = largest * (dy / largest.sum(axis=self._axes, keepdims=True))

    def _read(self) -> tuple[Array, Array]:
        """Inputs and outputs, or stand-ins of them where the backward pass reads neither."""
        return (self.x, self.y) if self.ctx.layer.backward_reads else (self.dy, self.dy)
