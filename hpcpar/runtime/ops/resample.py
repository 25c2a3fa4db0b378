"""Upsampling and padding on a block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Layer, Pad, Resampled, Shape
from hpcpar.network.layers.resample import Taps
from hpcpar.plan.boxes import Box, Interval, local
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.interior import strips


class ResampledOp(Operator):
    """Weighted sums along one image axis after another; backward transposes the weights."""

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
    """Taps from needed inputs to owned outputs, and the transposed taps."""
    assert isinstance(layer, Resampled)
    taps = layer.taps(axis, x, own)
    if taps is None:
        return None, None
    index, weight = taps[0] - need[0], taps[1]
    matrix = np.zeros((need[1] - need[0], own[1] - own[0]))
    np.add.at(matrix, (index, np.arange(len(index))[:, None]), weight)
    most = int(np.count_nonzero(matrix, axis=1).max(initial=1))
    reverse = np.argsort(matrix == 0, axis=1, kind="stable")[:, :most]
    return (index, weight), (reverse, np.take_along_axis(matrix, reverse, axis=1))


class PadOp(Operator):
    """Pads an image with a constant, or periodically with copies of its other end. The image may
    already lie in y. The backward pass adds the copies' gradients to their sources'.
    """

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Pad)
        inset = (0, *ctx.layer.inset(ctx.input_shape))
        image = tuple((lo + i, hi + i) for (lo, hi), i in zip(ctx.need, inset, strict=True))
        periodic, self._value = ctx.layer.mode == "periodic", ctx.layer.value
        self._image = local(image, ctx.own)
        self._borders = [] if periodic else [local(b, ctx.own) for b in strips(ctx.own, image)]
        repeats = _repeats(image, ctx.own) if periodic else ()
        self._repeats = [(local(a, ctx.own), local(b, ctx.own)) for a, b in repeats]

    def _forward(self) -> None:
        if self.x.size:
            self._move(self.x, self.y[self._image])
        for border in self._borders:
            self.y[border] = self._value
        for border, source in self._repeats:
            self.backend.copy(self.y[source], self.y[border])

    def _backward(self) -> None:
        for border, source in reversed(self._repeats):
            self.backend.accumulate(self.dy[border], self.dy[source])
        if self.dx.size:
            self._move(self.dy[self._image], self.dx)


def _repeats(image: Box, own: Box) -> Iterator[tuple[Box, Box]]:
    """(border, source) along uncut axes; later axes also repeat the borders of earlier ones."""
    for axis, ((first, last), (start, stop)) in enumerate(zip(image, own, strict=True)):
        for lo, hi, turn in ((start, first, last - first), (last, stop, first - last)):
            if hi > lo:
                ends = (lo, hi), (lo + turn, hi + turn)
                border, source = ((*own[:axis], end, *image[axis + 1:]) for end in ends)
                yield border, source


@operator(Resampled)
def resampled(ctx: Context) -> Operator:
    """The operator of a layer that upsamples or pads images."""
    return PadOp(ctx) if isinstance(ctx.layer, Pad) and ctx.layer.is_view else ResampledOp(ctx)
