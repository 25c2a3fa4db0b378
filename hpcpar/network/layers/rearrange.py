"""Layers that copy values without computing: selections, and features as images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Layer, PassWork, Shape, axes_of, need_features, need_image
from hpcpar.network.receptive_field import Picked, Relation, Same, Unflattened, Window


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
