"""Pooling on a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.kernels.interface import PoolSpec
from hpcpar.network.layers import AvgPool2d, AvgPool3d, Pool
from hpcpar.network.receptive_field import Window
from hpcpar.plan.boxes import Interval, shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.windows import reaches


class _PoolOp(Operator):
    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Pool)
        self.layer = ctx.layer
        if self.empty:
            return
        inner, pads = reaches(self.layer.windows(), ctx.own, ctx.need, ctx.input_shape[1:])
        self.inner = (slice(None), slice(None), *inner)
        self.spec = PoolSpec(self.layer.kernel, self.layer.stride, pads)
        dx = self.blocks.dx
        self._dx_partial = dx is not None and dx[self.inner].shape != dx.shape

    def _clear(self) -> bool:
        """Zero what no window reads; True where there is nothing else to do."""
        dx = self.blocks.dx
        assert dx is not None
        if self.empty or self._dx_partial:
            dx[...] = 0
        return self.empty


class MaxPoolOp(_PoolOp):
    """Maximum of each window."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.argmax = ctx.backend.empty(shape(ctx.own), np.int16)

    def forward(self) -> None:
        if not self.empty:
            x = self.blocks.x
            assert x is not None
            self.backend.maxpool_forward(x[self.inner], self.spec, self.blocks.y, self.argmax)

    def backward(self) -> None:
        if not self._clear():
            dx = self.blocks.dx
            assert dx is not None
            self.backend.maxpool_backward(self.blocks.dy, self.argmax, self.spec, dx[self.inner])


class AvgPoolOp(_PoolOp):
    """Mean of each window; the divisor follows PyTorch's rules at the image's edges."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        if self.empty:
            return
        layer = ctx.layer
        assert isinstance(layer, AvgPool2d | AvgPool3d)
        self.scales: list[Any] = []
        for window, out, extent in zip(layer.windows(), ctx.own[2:], ctx.input_shape[1:],
                                       strict=True):
            host = _scale(window, out, extent, layer.count_include_pad)
            scale = ctx.backend.empty(host.shape, ctx.blocks.y.dtype)  # type: ignore[union-attr]
            ctx.backend.to_device(host.astype(scale.dtype), scale)
            self.scales.append(scale)

    def forward(self) -> None:
        if not self.empty:
            x = self.blocks.x
            assert x is not None
            self.backend.avgpool_forward(x[self.inner], self.spec, self.scales, self.blocks.y)

    def backward(self) -> None:
        if not self._clear():
            dx = self.blocks.dx
            assert dx is not None
            self.backend.avgpool_backward(self.blocks.dy, self.spec, self.scales, dx[self.inner])


class GlobalAvgPoolOp(Operator):
    """Mean of whole images, which every rank that owns an output needs."""

    def forward(self) -> None:
        if not self.empty:
            self.backend.global_avgpool_forward(self.blocks.x, self.blocks.y)

    def backward(self) -> None:
        dx = self.blocks.dx
        assert dx is not None
        if self.empty:
            dx[...] = 0
        else:
            self.backend.global_avgpool_backward(self.blocks.dy, dx)


def _scale(window: Window, out: Interval, extent: int, count_pad: bool) -> np.ndarray:
    """1 / (indices that count) of every output along one axis: a window never counts beyond the
    padded image.
    """
    start = np.arange(*out) * window.stride - window.padding
    stop = np.minimum(start + window.kernel, extent + window.padding)
    if not count_pad:
        start, stop = np.maximum(start, 0), np.minimum(stop, extent)
    return 1.0 / (stop - start)
