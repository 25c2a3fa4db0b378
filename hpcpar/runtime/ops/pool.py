"""Pooling on a block."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hpcpar.kernels.bfloat16 import wide_type
from hpcpar.kernels.geometry import PoolSpec
from hpcpar.kernels.interface import Array, Tick
from hpcpar.network.layers import AvgPool, GlobalAvgPool, GlobalMaxPool, MaxPool, Pool
from hpcpar.network.receptive_field import Window
from hpcpar.plan.boxes import Interval, shape
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.runtime.ops.windows import reaches


class _PoolOp(Operator):
    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        layer = ctx.layer
        assert isinstance(layer, Pool)
        self.inner, pads = reaches(layer.windows(), ctx.own, ctx.need, ctx.input_shape[1:])
        self.spec = PoolSpec(layer.kernel, layer.stride, pads)


@operator(MaxPool)
class MaxPoolOp(_PoolOp):
    """Maximum of each window."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.argmax = ctx.backend.empty(shape(ctx.own), np.int16)

    @cached_property
    def _forward(self) -> Tick:
        return self.backend.bind("maxpool_forward", self.x[self.inner], self.spec, self.y,
                                 self.argmax)

    def _backward(self) -> None:
        self._clear_unread(self.inner)
        self._gradient()

    @cached_property
    def _gradient(self) -> Tick:
        return self.backend.bind("maxpool_backward", self.dy, self.argmax, self.spec,
                                 self.dx[self.inner])


@operator(AvgPool)
class AvgPoolOp(_PoolOp):
    """Mean of each window; the divisors at the image's edges follow PyTorch."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        layer = ctx.layer
        assert isinstance(layer, AvgPool)
        self.scales: list[Array] = []
        for window, out, extent in zip(layer.windows(), ctx.own[2:], ctx.input_shape[1:],
                                       strict=True):
            host = _scale(window, out, extent, layer.count_include_pad)
            scale = ctx.backend.empty(host.shape, wide_type(self.y))
            ctx.backend.to_device(host.astype(scale.dtype), scale)
            self.scales.append(scale)

    def _forward(self) -> None:
        self.backend.avgpool_forward(self.x[self.inner], self.spec, self.scales, self.y)

    def _backward(self) -> None:
        self._clear_unread(self.inner)
        self.backend.avgpool_backward(self.dy, self.spec, self.scales, self.dx[self.inner])


@operator(GlobalAvgPool)
class GlobalAvgPoolOp(Operator):
    """Mean of whole images; every rank that owns an output needs the whole image."""

    takes_bfloat16 = True

    def _forward(self) -> None:
        self.backend.global_avgpool_forward(self.x, self.y)

    def _backward(self) -> None:
        self.backend.global_avgpool_backward(self.dy, self.dx)


@operator(GlobalMaxPool)
class GlobalMaxPoolOp(Operator):
    """Maximum of whole images; every rank that owns an output needs the whole image."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.argmax = ctx.backend.empty(shape(ctx.own), np.int64)

    def _forward(self) -> None:
        self.backend.global_maxpool_forward(self.x, self.y, self.argmax)

    def _backward(self) -> None:
        self.backend.global_maxpool_backward(self.dy, self.argmax, self.dx)


def _scale(window: Window, out: Interval, extent: int, count_pad: bool) -> np.ndarray:
    """1 / (indices that count) per output along one axis; only the padded image counts."""
    start = np.arange(*out) * window.stride - window.padding
    stop = np.minimum(start + window.kernel, extent + window.padding)
    if not count_pad:
        start, stop = np.maximum(start, 0), np.minimum(stop, extent)
    return 1.0 / (stop - start)
