"""Layers that mix pixels with fixed weights: enlarging images, and padding them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError
from hpcpar.network.base import Layer, PassWork, Shape, axes_of, need_image, shape_text
from hpcpar.network.receptive_field import (
    IntArray,
    Interpolated,
    Interval,
    Periodic,
    Relation,
    Same,
    Window,
)

#: Inputs of each output along an axis, and their weights: both [outputs, taps].
Taps = tuple[IntArray, npt.NDArray[np.float64]]


def _number(axis: str, x: Shape) -> int | None:
    """Number of an axis among the image axes of a sample; None for samples and channels."""
    axes = axes_of(x)[2:]
    return axes.index(axis) if axis in axes else None


def _per_axis(layer: Layer, name: str, x: Shape, neutral: int) -> Shape:
    """A field's numbers for each image axis; one number alone is that of a signal (C, 1, W)."""
    given = getattr(layer, name)
    value = tuple(given) if isinstance(given, list | tuple) else ()
    if len(value) == 1 and len(x) == 3 and x[1] == 1:
        value = (neutral, *value)
    if len(value) != len(x) - 1 or any(not isinstance(v, int) or v < neutral for v in value):
        raise InputError(f"layer '{layer.name}' ({layer.kind}): {name}={given} for an input {x}; "
                         f"give {len(x) - 1} whole numbers of at least {neutral}, as a tuple")
    return value


@dataclass(frozen=True)
class Resampled(Layer):
    """A layer whose outputs are sums of inputs with fixed weights, one image axis at a time."""

    backward_reads: ClassVar[tuple[str, ...]] = ()

    def work(self, op: str) -> PassWork:
        return PassWork(weights=0)

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        """Inputs and weights of some outputs along image axis number `axis`; None: unchanged.

        Parameters
        ----------
        x : tuple of int
            Shape of an input sample.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Upsample(Resampled):
    """Enlarges images by whole factors, as PyTorch's Upsample.

    Attributes
    ----------
    scale : tuple of int
        Factor of each image axis.
    mode : {'nearest', 'linear'}
        Copies of the nearest pixel, or (bi-, tri-) linear interpolation.
    align_corners : bool
        Whether linear interpolation keeps the corner pixels in place.
    """

    scale: Shape = (2, 2)
    mode: str = "nearest"
    align_corners: bool = False
    kind: ClassVar[str] = "upsample"

    def __post_init__(self) -> None:
        if self.mode not in ("nearest", "linear"):
            raise InputError(f"layer '{self.name}' (upsample): mode '{self.mode}'; use nearest or "
                             "linear")
        if self.align_corners and self.mode == "nearest":
            raise InputError(f"layer '{self.name}' (upsample): only the mode linear can have "
                             "align_corners")

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        scale = _per_axis(self, "scale", x, 1)
        return (x[0], *(n * s for n, s in zip(x[1:], scale, strict=True)))

    def _along(self, axis: int, x: Shape) -> Interpolated:
        """Output i lies at input (i * up + shift) / down."""
        scale, size = _per_axis(self, "scale", x, 1)[axis], x[1 + axis]
        if self.mode == "nearest":
            return Interpolated(1, scale, taps=1)
        if self.align_corners:
            return Interpolated(size - 1, max(1, size * scale - 1))
        return Interpolated(2, 2 * scale, 1 - scale)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        number = _number(axis, x)
        if number is None or _per_axis(self, "scale", x, 1)[number] == 1:
            return Same()
        return self._along(number, x)

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        along, size = self._along(axis, x), x[1 + axis]
        if _per_axis(self, "scale", x, 1)[axis] == 1:
            return None
        whole, rest = np.divmod(np.arange(*outputs) * along.up + along.shift, along.down)
        if along.taps == 1:
            return whole[:, None], np.ones((len(whole), 1))
        right = rest / along.down
        index = np.clip(np.stack([whole, whole + 1], axis=1), 0, size - 1)
        return index, np.stack([1 - right, right], axis=1)

    def forward_flops(self, x: Shape) -> float:
        taps = 1 if self.mode == "nearest" else 2
        return 2.0 * taps * (len(x) - 1) * math.prod(self.output_shape(x))

    def variant(self, channels: int, whole: int) -> str:
        return f" s={shape_text(self.scale)} {self.mode}"


@dataclass(frozen=True)
class Pad(Resampled):
    """Padding with zeros, or with the other end of the image.

    Attributes
    ----------
    begin, end : tuple of int
        Pixels added before and after each image axis.
    mode : {'constant', 'periodic'}
        Zeros, or the image repeated (PyTorch's circular).
    """

    begin: Shape = (0, 0)
    end: Shape = (0, 0)
    mode: str = "constant"
    kind: ClassVar[str] = "pad"

    def __post_init__(self) -> None:
        if self.mode not in ("constant", "periodic"):
            raise InputError(f"layer '{self.name}' (pad): mode '{self.mode}'; use constant or "
                             "periodic")

    def amounts(self, x: Shape) -> tuple[Interval, ...]:
        """(before, after) of each image axis."""
        ends = (_per_axis(self, name, x, 0) for name in ("begin", "end"))
        return tuple(zip(*ends, strict=True))

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        amounts = self.amounts(x)
        if self.mode == "periodic" and any(max(a) > n for a, n in zip(amounts, x[1:], strict=True)):
            raise InputError(f"layer '{self.name}' (pad): an image {x[1:]} cannot be repeated for "
                             f"{amounts} pixels; pad by at most its extent")
        return (x[0], *(n + sum(a) for a, n in zip(amounts, x[1:], strict=True)))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        number = _number(axis, x)
        before, after = (0, 0) if number is None else self.amounts(x)[number]
        if not before + after:
            return Same()
        return Periodic(before) if self.mode == "periodic" else Window(1, 1, before)

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        before, after = self.amounts(x)[axis]
        if not before + after:
            return None
        index = (np.arange(*outputs) - before) % x[1 + axis]
        return index[:, None], np.ones((len(index), 1))

    def forward_flops(self, x: Shape) -> float:
        return 0.0
