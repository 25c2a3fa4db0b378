"""Layers that mix pixels with fixed weights: resizing and padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError
from hpcpar.network.layers.base import (
    LARGEST_FLOAT,
    NO_WORK,
    Layer,
    PassWork,
    Shape,
    axes_of,
    need_image,
    shape_text,
)
from hpcpar.network.receptive_field import (
    Folded,
    Interpolated,
    Interval,
    Periodic,
    Relation,
    Same,
    Window,
)

#: Input indices and weights of each output along an axis: both [outputs, taps].
Taps = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _number(axis: str, x: Shape) -> int | None:
    """Number of an axis among a sample's image axes; None for the sample and channel axes."""
    axes = axes_of(x)[2:]
    return axes.index(axis) if axis in axes else None


def _per_axis(layer: Layer, name: str, x: Shape, neutral: int) -> Shape:
    """A field's value for each image axis; a signal (C, 1, W) may have a single number."""
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
    """Layers whose outputs are fixed weighted sums of inputs, one image axis at a time."""

    backward_reads: ClassVar[tuple[str, ...]] = ()

    def work(self, op: str) -> PassWork:
        return PassWork(weights=0)

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        """Taps of an interval of outputs along image axis number `axis`; None for an identity."""
        raise NotImplementedError


@dataclass(frozen=True)
class Upsample(Resampled):
    """Resizes images, like PyTorch's Upsample.

    Attributes
    ----------
    scale : tuple of int
        Factor of each image axis.
    size : tuple of int
        Extents of the output, larger or smaller, which replace `scale` unless empty.
    mode : {'nearest', 'linear'}
        Copies of the nearest pixel, or (bi-, tri-) linear interpolation.
    align_corners : bool
        Whether linear interpolation keeps the corner pixels in place.
    """

    scale: Shape = (2, 2)
    mode: str = "nearest"
    align_corners: bool = False
    size: Shape = ()
    kind: ClassVar[str] = "upsample"

    def __post_init__(self) -> None:
        if self.mode not in ("nearest", "linear"):
            raise InputError(f"layer '{self.name}' (upsample): mode '{self.mode}'; use nearest or "
                             "linear")
        if self.align_corners and self.mode == "nearest":
            raise InputError(f"layer '{self.name}' (upsample): align_corners needs mode linear")

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        if self.size:
            return (x[0], *_per_axis(self, "size", x, 1))
        scale = _per_axis(self, "scale", x, 1)
        return (x[0], *(n * s for n, s in zip(x[1:], scale, strict=True)))

    def _along(self, axis: int, x: Shape) -> Interpolated:
        """Relation with output i at input (i * up + shift) / down."""
        inputs, outputs = x[1 + axis], self.output_shape(x)[1 + axis]
        if self.align_corners:
            return Interpolated(inputs - 1, max(1, outputs - 1))
        common = math.gcd(inputs, outputs)
        up, down = inputs // common, outputs // common
        if self.mode == "nearest":
            return Interpolated(up, down, taps=1)
        return Interpolated(2 * up, 2 * down, up - down)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        number = _number(axis, x)
        if number is None or self.output_shape(x)[1 + number] == x[1 + number]:
            return Same()
        return self._along(number, x)

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        along, size = self._along(axis, x), x[1 + axis]
        if self.output_shape(x)[1 + axis] == size:
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
        return f" s={shape_text(self.size or self.scale)} {self.mode}"


@dataclass(frozen=True)
class AdaptiveAvgPool(Resampled):
    """Averages over windows of nearly equal extents, which may overlap.

    Attributes
    ----------
    size : tuple of int
        Number of windows along each image axis: the output's extents.
    """

    size: Shape = (1, 1)
    kind: ClassVar[str] = "adaptiveavgpool"
    kernel_family: ClassVar[str] = "pooling"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        return (x[0], *_per_axis(self, "size", x, 1))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        number = _number(axis, x)
        if number is None:
            return Same()
        extent, windows = x[1 + number], self.output_shape(x)[1 + number]
        return Interpolated(extent, windows, taps=-(-extent // windows) + (extent % windows > 0))

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        extent, windows = x[1 + axis], self.output_shape(x)[1 + axis]
        places = np.arange(*outputs)
        first, last = places * extent // windows, -(-(places + 1) * extent // windows)
        index = first[:, None] + np.arange(max((last - first).max(initial=1), 1))
        weight = (index < last[:, None]) / (last - first)[:, None]
        return np.minimum(index, extent - 1), weight

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x))


@dataclass(frozen=True)
class Pad(Resampled):
    """Padding with a number or with pixels of the image.

    Attributes
    ----------
    begin, end : tuple of int
        Pixels added before and after each image axis.
    mode : {'constant', 'periodic', 'reflect', 'edge'}
        A number, the image repeated (PyTorch's circular), the image mirrored, or its last pixel
        repeated (PyTorch's replicate).
    value : float
        The number; infinity becomes the largest float32.
    channels : tuple of int
        Constant channels added before and after the image's.
    """

    begin: Shape = (0, 0)
    end: Shape = (0, 0)
    mode: str = "constant"
    value: float = 0.0
    channels: Shape = (0, 0)
    kind: ClassVar[str] = "pad"
    output_flops: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("constant", "periodic", "reflect", "edge"):
            raise InputError(f"layer '{self.name}' (pad): mode '{self.mode}'; use constant, "
                             "periodic, reflect or edge")
        if self.mode != "constant" and any(self.channels):
            raise InputError(f"layer '{self.name}' (pad): channels={self.channels}; only constant "
                             "padding adds channels")
        object.__setattr__(self, "value", min(max(self.value, -LARGEST_FLOAT), LARGEST_FLOAT))

    def amounts(self, x: Shape) -> tuple[Interval, ...]:
        """(before, after) of each image axis."""
        ends = (_per_axis(self, name, x, 0) for name in ("begin", "end"))
        return tuple(zip(*ends, strict=True))

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return self.mode in ("constant", "periodic")

    @property
    def is_view(self) -> bool:  # type: ignore[override]
        return self.in_place

    def inset(self, x: Shape) -> Shape:
        begins = (before for before, _ in self.amounts(x))
        return (self.channels[0], *begins) if self.in_place else ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        amounts = self.amounts(x)
        if self.mode == "periodic" and any(max(a) > n for a, n in zip(amounts, x[1:], strict=True)):
            raise InputError(f"layer '{self.name}' (pad): an image {x[1:]} cannot be repeated over "
                             f"{amounts} pixels; pad by at most its extent")
        if self.mode == "reflect" and any(max(a) >= n for a, n in zip(amounts, x[1:], strict=True)):
            raise InputError(f"layer '{self.name}' (pad): an image {x[1:]} cannot be mirrored over "
                             f"{amounts} pixels; pad by less than its extent")
        sides = zip(amounts, x[1:], strict=True)
        return (x[0] + sum(self.channels), *(n + sum(a) for a, n in sides))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "c":
            return Window(1, 1, self.channels[0]) if any(self.channels) else Same()
        number = _number(axis, x)
        before, after = (0, 0) if number is None else self.amounts(x)[number]
        if not before + after:
            return Same()
        if self.mode == "constant":
            return Window(1, 1, before)
        return Periodic(before) if self.mode == "periodic" else Folded(before, self.mode == "edge")

    def taps(self, axis: int, x: Shape, outputs: Interval) -> Taps | None:
        before, after = self.amounts(x)[axis]
        if not before + after:
            return None
        folded = Folded(before, self.mode == "edge")
        index = np.array([folded.place(i, x[1 + axis]) for i in range(*outputs)], np.int64)
        return index[:, None], np.ones((len(index), 1))

    def work(self, op: str) -> PassWork:
        """A view costs nothing: the image is in place already, and its borders are small."""
        return NO_WORK if self.is_view else super().work(op)
