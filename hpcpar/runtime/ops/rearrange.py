"""Selection of channels and pixels, features as images, and channels as pixels, on a block."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from hpcpar.kernels.interface import Array
from hpcpar.network.layers import Expand, PixelShuffle, Select, Shuffled, Unflatten
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator

Places = npt.NDArray[np.int64]


@operator(Select)
class SelectOp(Operator):
    """Copies of selected channels and pixels; the backward pass sums the copies' gradients."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Select)
        layer, image, need = ctx.layer, ctx.own[2:], ctx.need[2:]
        (first, last), (have, _) = ctx.own[1], ctx.need[1]
        self._image: tuple[slice, ...] = (slice(None),) * len(ctx.own)
        if layer.size:
            pixels = zip(layer.begin, layer.step, image, need, strict=True)
            self._image = (slice(None), slice(None), *(
                slice(b + lo * s - n, b + (hi - 1) * s - n + 1, s) for b, s, (lo, hi), (n, _)
                in pixels))
        picked = np.array(layer.channels or range(ctx.input_shape[0]), np.int64)
        picked = picked[first:last] - have
        #: (input channels, output channels); an entry has no channel twice.
        self._copies = [] if self.empty else [
            (self._on_device(picked[places]), self._on_device(places))
            for places in _rounds(picked)]

    def _on_device(self, places: Places) -> slice | Array:
        """Positions as a slice where they are consecutive, else as an array on the device."""
        start, count = int(places[0]), len(places)
        if (places == np.arange(start, start + count)).all():
            return slice(start, start + count)
        return self.backend.upload(places)

    def _part(self, x: Array) -> Array:
        return x[self._image]

    def _forward(self) -> None:
        x = self._part(self.x)
        for read, written in self._copies:
            self.y[:, written] = x[:, read]

    def _backward(self) -> None:
        self.dx[...] = 0
        dx = self._part(self.dx)
        for read, written in self._copies:
            dx[:, read] += self.dy[:, written]


def _rounds(picked: Places) -> list[Places]:
    """Positions of every value's first occurrence, then of every second occurrence, and so on."""
    order = np.argsort(picked, kind="stable")
    ordered = picked[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    rounds = np.arange(len(picked)) - np.repeat(begins, np.diff([*begins, len(picked)]))
    return [np.sort(order[rounds == i]) for i in range(int(rounds.max(initial=-1)) + 1)]


@operator(Expand)
class ExpandOp(Operator):
    """Copies of a feature at every pixel; where the image is cut, dx is a partial sum."""

    def _forward(self) -> None:
        self.y[...] = self.x.reshape(self.x.shape + (1,) * (self.y.ndim - 2))

    def _backward(self) -> None:
        self.backend.xp.sum(self.dy, axis=tuple(range(2, self.dy.ndim)), out=self.dx)


@operator(Unflatten)
class UnflattenOp(Operator):
    """Features as an image; this rank takes its part of the image."""

    def _image(self, features: Array) -> Array:
        extents = self.ctx.layer.output_shape(self.ctx.input_shape)[1:]
        box = (slice(None), slice(None), *(slice(*i) for i in self.ctx.own[2:]))
        return features.reshape(len(features), -1, *extents)[box]

    def _forward(self) -> None:
        self.y[...] = self._image(self.x)

    def _backward(self) -> None:
        dx = self.backend.zeros(self.dx.shape, self.dx.dtype)
        self._image(dx)[...] = self.dy
        self.dx[...] = dx


@operator(Shuffled)
class ShuffledOp(Operator):
    """Copies pixels at one place in their blocks to or from the channels of that place."""

    takes_bfloat16 = True

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        assert isinstance(ctx.layer, Shuffled)
        block = ctx.layer.block
        joins = isinstance(ctx.layer, PixelShuffle)
        pixels, pixel_of_block = (ctx.own, ctx.need) if joins else (ctx.need, ctx.own)
        channels = math.prod(block)
        #: Boxes (x, y) of equal shapes; a part's rows need not end with a block.
        self._copies = []
        for channel, place in enumerate(itertools.product(*map(range, block))):
            many, few = [], []
            for i, b, (lo, hi), (first, _) in zip(place, block, pixels[2:], pixel_of_block[2:],
                                                  strict=True):
                begin, end = -((i - lo) // b), -((i - hi) // b)
                many.append(slice(begin * b + i - lo, None, b))
                few.append(slice(begin - first, end - first))
            boxes = [(slice(None), slice(channel, None, channels), *few),
                     (slice(None), slice(None), *many)]
            self._copies.append((boxes[not joins], boxes[joins]))
        self._reads_all = all(n % b == 0 for interval, b in zip(pixels[2:], block, strict=True)
                              for n in interval)

    def _forward(self) -> None:
        for read, written in self._copies:
            self.backend.copy(self.x[read], self.y[written])

    def _backward(self) -> None:
        if not self._reads_all:
            self.dx[...] = 0
        for read, written in self._copies:
            self.backend.copy(self.dy[written], self.dx[read])
