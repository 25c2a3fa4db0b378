"""Upsampling and padding on a block."""

from __future__ import annotations

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Layer, Pad, Resampled, Shape
from hpcpar.network.resample import Taps
from hpcpar.plan.boxes import Interval
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator


class ResampledOp(Operator):
    """Weighted sums along one image axis after the other; backward by the transposed weights."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self._forth: list[tuple[Array, Array] | None] = []
        self._back: list[tuple[Array, Array] | None] = []
        for axis, (own, need) in enumerate(zip(ctx.own[2:], ctx.need[2:], strict=True)):
            forth, back = _tables(ctx.layer, axis, ctx.input_shape, own, need)
            self._forth.append(self._on_device(forth))
            self._back.append(self._on_device(back))

    def _on_device(self, taps: Taps | None) -> tuple[Array, Array] | None:
        if taps is None:
            return None
        index, weight = (np.ascontiguousarray(table.T) for table in taps)
        tables = (self.backend.empty(index.shape, index.dtype),
                  self.backend.empty(weight.shape, self.y.dtype))
        for host, table in zip((index, weight.astype(self.y.dtype)), tables, strict=True):
            self.backend.to_device(host, table)
        return tables

    def _forward(self) -> None:
        self.backend.weighted_sums(self.x, self._forth, self.y)

    def _backward(self) -> None:
        self.backend.weighted_sums(self.dy, self._back, self.dx)


def _tables(layer: Layer, axis: int, x: Shape, own: Interval,
            need: Interval) -> tuple[Taps | None, Taps | None]:
    """The taps of the owned outputs in the needed inputs, and of these in the owned outputs."""
    assert isinstance(layer, Resampled)
    taps = layer.taps(axis, x, own)
    if taps is None:
        return None, None
    index, weight = (taps[0] - need[0]) % x[1 + axis], taps[1]
    matrix = np.zeros((need[1] - need[0], own[1] - own[0]))
    np.add.at(matrix, (index, np.arange(len(index))[:, None]), weight)
    most = int(np.count_nonzero(matrix, axis=1).max(initial=1))
    reverse = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    return (index, weight), (reverse, np.take_along_axis(matrix, reverse, axis=1))


class ConstantPadOp(Operator):
    """A copy of the image between equal numbers."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Pad)
        self._value = ctx.layer.value
        added = ((0, 0), ctx.layer.channels, *ctx.layer.amounts(ctx.input_shape))
        inner, image = [slice(None)], [slice(None)]
        for (before, _), own, need, extent in list(
                zip(added, ctx.own, ctx.need, (0, *ctx.input_shape), strict=True))[1:]:
            low, high = (min(max(i - before, 0), extent) for i in own)
            inner.append(slice(low - need[0], high - need[0]))
            image.append(slice(low + before - own[0], high + before - own[0]))
        self._inner, self._image = tuple(inner), tuple(image)
        self._any = all(s.stop > s.start for s in inner[1:])

    def _forward(self) -> None:
        self.y[...] = self._value
        if self._any:
            self.backend.copy(self.x[self._inner], self.y[self._image])

    def _backward(self) -> None:
        self._clear_unread(self._inner)
        if self._any:
            self.backend.copy(self.dy[self._image], self.dx[self._inner])


@operator(Resampled)
def resampled(ctx: Context) -> Operator:
    """The op of a layer that enlarges or pads images."""
    constant = isinstance(ctx.layer, Pad) and ctx.layer.mode == "constant"
    return ConstantPadOp(ctx) if constant else ResampledOp(ctx)
