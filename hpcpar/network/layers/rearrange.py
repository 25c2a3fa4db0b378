"""Layers that copy values without computing: selections, features as images, channels as pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import (
    Layer,
    PassWork,
    Shape,
    axes_of,
    need_features,
    need_image,
    shape_text,
)
from hpcpar.network.receptive_field import (
    Granule,
    Interpolated,
    Picked,
    Relation,
    Same,
    Unflattened,
    Window,
)


@dataclass(frozen=True)
class Moves(Layer):
    """Base class: every output is a copy of an input."""

    backward_reads: ClassVar[tuple[str, ...]] = ()
    output_flops: ClassVar[float] = 0.0

    def work(self, op: str) -> PassWork:
        return PassWork(0.0, weights=0)


@dataclass(frozen=True)
class Select(Moves):
    """Selected channels, in any order and with repetitions, at all pixels or in a box of pixels.

    It expresses slices, splits, channel shuffles, and repeated or broadcast channels.

    Attributes
    ----------
    channels : tuple of int
        Input channel of each output channel; () means all channels.
    begin, step, size : tuple of int
        First pixel, distance and number of pixels along each image axis; () means all pixels.
    """

    channels: Shape = ()
    begin: Shape = ()
    step: Shape = ()
    size: Shape = ()
    kind: ClassVar[str] = "select"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if self.channels and not max(self.channels) < x[0]:
            raise InputError(f"layer '{self.name}' (select): channel {max(self.channels)} of an "
                             f"input with {x[0]}; count from 0")
        axes = {len(self.begin), len(self.step), len(self.size)}
        ends = (b + s * (n - 1) for b, s, n in zip(self.begin, self.step, self.size, strict=False))
        if self.size and (axes != {len(x) - 1} or not min(*self.step, *self.size)
                          or any(end >= n for end, n in zip(ends, x[1:], strict=True))):
            raise InputError(f"layer '{self.name}' (select): {self.size} pixels from {self.begin} "
                             f"in steps of {self.step} do not fit in an input {x}; give three "
                             f"tuples of {len(x) - 1} numbers")
        return (len(self.channels) or x[0], *(self.size or x[1:]))

    @cached_property
    def _picked(self) -> Picked:
        return Picked(self.channels)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n" or not (self.channels if axis == "c" else self.size):
            return Same()
        if axis == "c":
            return self._picked
        number = axes_of(x)[2:].index(axis)
        return Window(1, self.step[number], -self.begin[number])


@dataclass(frozen=True)
class Expand(Moves):
    """Copies features to every pixel of an image.

    Attributes
    ----------
    size : tuple of int
        Extents of the image.
    """

    size: Shape = (1, 1)
    kind: ClassVar[str] = "expand"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_features(self, x)
        return (x[0], *self.size)


@dataclass(frozen=True)
class Unflatten(Moves):
    """Features to images, channel by channel: the inverse of `Flatten`.

    Attributes
    ----------
    shape : tuple of int
        Shape of an output sample.
    """

    shape: Shape = ()
    kind: ClassVar[str] = "unflatten"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_features(self, x)
        if math.prod(self.shape) != x[0]:
            raise InputError(f"layer '{self.name}' (unflatten): {x[0]} features cannot become an "
                             f"image {self.shape}; give a shape with {x[0]} values")
        need_image(self, self.shape)
        return self.shape

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis == "n" else Unflattened(math.prod(self.shape[1:]))


@dataclass(frozen=True)
class Shuffled(Moves):
    """Base class: a block of pixels in one channel is one pixel in as many channels.

    The order of channels is PyTorch's: places in a block, the last image axis fastest.

    Attributes
    ----------
    block : tuple of int
        Extents of a block along each image axis.
    """

    block: Shape = (2, 2)

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        if len(self.block) != len(x) - 1 or min(self.block) < 1:
            raise InputError(f"layer '{self.name}' ({self.kind}): blocks of {self.block} pixels "
                             f"in an input {x}; give {len(x) - 1} positive numbers")
        return self._shuffled(x)

    def _shuffled(self, x: Shape) -> Shape:
        raise NotImplementedError

    def _extent(self, axis: str, x: Shape) -> int:
        """Extent of a block along an image axis."""
        return self.block[axes_of(x)[2:].index(axis)]

    def variant(self, channels: int, whole: int) -> str:
        return f" b={shape_text(self.block)}"


@dataclass(frozen=True)
class PixelShuffle(Shuffled):
    """Channels to pixels: each channel of the output is made of a block's channels."""

    kind: ClassVar[str] = "pixelshuffle"

    def _shuffled(self, x: Shape) -> Shape:
        channels, rest = divmod(x[0], math.prod(self.block))
        if rest:
            raise InputError(f"layer '{self.name}' (pixelshuffle): {x[0]} channels do not divide "
                             f"into blocks of {shape_text(self.block)} pixels; give a multiple of "
                             f"{math.prod(self.block)}")
        return (channels, *(n * b for n, b in zip(x[1:], self.block, strict=True)))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n":
            return Same()
        if axis == "c":
            return Unflattened(math.prod(self.block))
        extent = self._extent(axis, x)
        return Same() if extent == 1 else Interpolated(1, extent, taps=1)


@dataclass(frozen=True)
class PixelUnshuffle(Shuffled):
    """Pixels to channels: the inverse of `PixelShuffle`."""

    kind: ClassVar[str] = "pixelunshuffle"

    def _shuffled(self, x: Shape) -> Shape:
        if any(n % b for n, b in zip(x[1:], self.block, strict=True)):
            raise InputError(f"layer '{self.name}' (pixelunshuffle): an input {x} does not divide "
                             f"into blocks of {shape_text(self.block)} pixels; pad or crop it")
        return (x[0] * math.prod(self.block),
                *(n // b for n, b in zip(x[1:], self.block, strict=True)))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n":
            return Same()
        if axis == "c":
            return Granule(self.granule(x))
        extent = self._extent(axis, x)
        return Same() if extent == 1 else Window(extent, extent)

    def granule(self, x: Shape) -> int:
        return math.prod(self.block)
