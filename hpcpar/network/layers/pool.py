"""Pooling layers: maximum and average over windows, and over whole images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import Layer, Shape, need_image, shape_text
from hpcpar.network.layers.windowed import Windowed
from hpcpar.network.receptive_field import Full, Relation, Same


@dataclass(frozen=True)
class Pool(Windowed):
    """Base class of maximum and average pooling.

    Attributes
    ----------
    kernel, stride, padding : tuple of int
        One number per image axis; a single number applies to all axes.
    ceil_mode : bool
        Whether a last window that only starts inside the image counts, as in PyTorch.
    """

    kernel_family: ClassVar[str] = "pooling"
    kernel: Shape = (2,)
    stride: Shape = (2,)
    padding: Shape = (0,)
    ceil_mode: bool = False
    backward_reads: ClassVar[tuple[str, ...]] = ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x, self.dimensions)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise InputError(f"layer '{self.name}': padding {self.padding} exceeds half the "
                             f"pooling window {self.kernel}")
        return (x[0], *self.image_out(x, self.ceil_mode))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis in "nc" else self.window(axis)

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(self.output_shape(x)) * math.prod(self.kernel))

    def variant(self, channels: int, whole: int) -> str:
        return f" k={shape_text(self.kernel)} s={shape_text(self.stride)}"


@dataclass(frozen=True)
class MaxPool(Pool):
    """Base class of maximum pooling."""

    def kept_bytes(self, item_bytes: int) -> int:
        """The position of the maximum in its window, as int16."""
        return 2


@dataclass(frozen=True)
class MaxPool2d(MaxPool):
    """Maximum pooling of images ``(C, H, W)``; padding never wins."""

    kind: ClassVar[str] = "maxpool2d"


@dataclass(frozen=True)
class MaxPool1d(MaxPool2d):
    """Maximum pooling of signals ``(C, W)``, images with one row."""

    kind: ClassVar[str] = "maxpool1d"
    of_signals: ClassVar[bool] = True


@dataclass(frozen=True)
class MaxPool3d(MaxPool):
    """Maximum pooling of volumes ``(C, D, H, W)``; padding never wins."""

    kind: ClassVar[str] = "maxpool3d"
    dimensions: ClassVar[int] = 3


@dataclass(frozen=True)
class AvgPool(Pool):
    """Average pooling; `count_include_pad` as in PyTorch."""

    count_include_pad: bool = True


@dataclass(frozen=True)
class AvgPool2d(AvgPool):
    """Average pooling of images ``(C, H, W)``."""

    kind: ClassVar[str] = "avgpool2d"


@dataclass(frozen=True)
class AvgPool1d(AvgPool2d):
    """Average pooling of signals ``(C, W)``, images with one row."""

    kind: ClassVar[str] = "avgpool1d"
    of_signals: ClassVar[bool] = True


@dataclass(frozen=True)
class AvgPool3d(AvgPool):
    """Average pooling of volumes ``(C, D, H, W)``."""

    kind: ClassVar[str] = "avgpool3d"
    dimensions: ClassVar[int] = 3


@dataclass(frozen=True)
class GlobalPool(Layer):
    """Base class: one value per channel, from ``(C, H, W)`` or ``(C, D, H, W)`` to ``(C,)``."""

    kernel_family: ClassVar[str] = "pooling"
    backward_reads: ClassVar[tuple[str, ...]] = ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x)
        return (x[0],)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis in "nc" else Full()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x))


@dataclass(frozen=True)
class GlobalAvgPool(GlobalPool):
    """Average of each channel over the image."""

    kind: ClassVar[str] = "globalavgpool"


@dataclass(frozen=True)
class GlobalMaxPool(GlobalPool):
    """Maximum of each channel over the image; the gradient goes to the first of equal maxima."""

    kind: ClassVar[str] = "globalmaxpool"

    def kept_bytes(self, item_bytes: int) -> int:
        """The position of the maximum in the image, as int64."""
        return 8
