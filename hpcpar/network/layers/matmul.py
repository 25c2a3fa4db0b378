"""Layers that multiply inputs by weights: convolutions and the fully connected layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.io.schema import Extent
from hpcpar.network.layers.base import Layer, Shape, need_features, need_image, shape_text
from hpcpar.network.layers.windowed import Windowed
from hpcpar.network.receptive_field import Full, Groups, Relation, Same


class Matmul(Layer):
    """Base class of products of weights and inputs.

    Attributes
    ----------
    bias : bool
        Whether each output channel has a bias.
    """

    bias: bool
    is_matmul: ClassVar[bool] = True
    has_weights: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)
    lends_output: ClassVar[bool] = True

    def bias_shape(self, x: Shape) -> Shape:
        return self.weight_shape(x)[:1] if self.bias else ()

    def forward_flops(self, x: Shape) -> float:
        return 2.0 * math.prod(self.output_shape(x)[1:]) * math.prod(self.weight_shape(x))


@dataclass(frozen=True)
class Conv(Matmul, Windowed):
    """Convolution (cross-correlation, as in PyTorch) of images or volumes.

    Attributes
    ----------
    out_channels : int
        Number of filters.
    kernel, stride, padding, dilation : tuple of int
        One number per image axis; a single number applies to all axes.
    groups : int
        Number of groups; the output channels of a group read the input channels of that group.
    """

    out_channels: Extent = 1
    kernel: Shape = (1,)
    stride: Shape = (1,)
    padding: Shape = (0,)
    dilation: Shape = (1,)
    groups: Extent = 1
    bias: bool = True
    window_options: ClassVar[tuple[str, ...]] = ("kernel", "stride", "padding", "dilation")
    has_interior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out_channels < 1 or self.groups < 1:
            raise InputError(f"layer '{self.name}' ({self.kind}): {self.out_channels} output "
                             f"channels in {self.groups} groups; both must be at least 1")

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_image(self, x, self.dimensions)
        if x[0] % self.groups or self.out_channels % self.groups:
            raise InputError(
                f"layer '{self.name}': {self.groups} groups do not divide both {x[0]} input and "
                f"{self.out_channels} output channels; choose a common divisor")
        return (self.out_channels, *self.image_out(x))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n":
            return Same()
        if axis == "c":
            if self.groups == 1:
                return Full()
            return Groups(self.groups, self.out_channels // self.groups, x[0] // self.groups)
        return self.window(axis)

    def weight_shape(self, x: Shape) -> Shape:
        return (self.out_channels, x[0] // self.groups, *self.kernel)

    def variant(self, channels: int, whole: int) -> str:
        groups = 1 if self.groups == 1 else max(1, channels * self.groups // whole)
        window = (f"{letter}={shape_text(numbers)}" for letter, numbers in zip(
            "ksd", (self.kernel, self.stride, self.dilation), strict=True))
        return f" {' '.join(window)} g={groups}"


@dataclass(frozen=True)
class Conv2d(Conv):
    """Convolution of images ``(C, H, W)``."""

    kind: ClassVar[str] = "conv2d"


@dataclass(frozen=True)
class Conv1d(Conv2d):
    """Convolution of signals ``(C, W)``, images with one row."""

    kind: ClassVar[str] = "conv1d"
    of_signals: ClassVar[bool] = True


@dataclass(frozen=True)
class Conv3d(Conv):
    """Convolution of volumes ``(C, D, H, W)``."""

    kind: ClassVar[str] = "conv3d"
    dimensions: ClassVar[int] = 3


@dataclass(frozen=True)
class Linear(Matmul):
    """Fully connected layer: y = W x + b for features x."""

    out_features: Extent = 1
    bias: bool = True
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        if self.out_features < 1:
            raise InputError(f"layer '{self.name}' (linear): {self.out_features} output features; "
                             "give at least 1")

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_features(self, x)
        return (self.out_features,)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis == "n" else Full()

    def weight_shape(self, x: Shape) -> Shape:
        return (self.out_features, x[0])

    def fan(self, x: Shape) -> int:
        """The number of inputs or of outputs, whichever is larger: with fan-in alone, gradients of
        a widening layer are so large that usual learning rates diverge.
        """
        return max(x[0], self.out_features)
