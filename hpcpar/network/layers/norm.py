"""Normalization layers: across neighboring channels, and by mean and variance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError
from hpcpar.io.schema import Extent, NotNegative
from hpcpar.network.layers.base import Layer, PassWork, Shape
from hpcpar.network.receptive_field import Full, Relation, Same, Window

#: Flops per element, and values read or written per element, of each pass of a normalization.
_PARTS = {"statistics": (3, 1), "forward": (2, 2), "backward_weight": (3, 2), "backward": (5, 3)}


@dataclass(frozen=True)
class LRN(Layer):
    """Local response normalization: x / (k + alpha / size * sum of squares) ** beta.

    The sum runs over a channel, size // 2 channels before it and (size - 1) // 2 after it.
    """

    size: Extent = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    kind: ClassVar[str] = "lrn"
    kernel_family: ClassVar[str] = "lrn"

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Window(self.size, 1, self.size // 2) if axis == "c" else Same()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x) * (2 * self.size + 3))

    def variant(self, channels: int, whole: int) -> str:
        return f" size={self.size}"

    def kept_bytes(self, item_bytes: int) -> int:
        """The scale of each element."""
        return item_bytes


@dataclass(frozen=True)
class Normalization(Layer):
    """Base class of layers that compute (x - mean) / sqrt(variance + eps) * weight + bias.

    Given the statistics, these layers are elementwise; ranks reduce the statistics.

    Attributes
    ----------
    affine : bool
        Whether the layer has a weight and a bias.
    """

    eps: NotNegative = 1e-5
    affine: bool = True
    kernel_family: ClassVar[str] = "normalization"
    elementwise: ClassVar[bool] = True
    #: Three for sum and sum of squares, two for the affine map.
    output_flops: ClassVar[float] = 5.0
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)
    lends_output: ClassVar[bool] = True

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return self.affine

    def weight_shape(self, x: Shape) -> Shape:
        return (x[0],) if self.affine else ()

    def bias_shape(self, x: Shape) -> Shape:
        return self.weight_shape(x)

    def work(self, op: str) -> PassWork:
        flops, values = _PARTS[op]
        return PassWork(flops / 5, inputs=values, outputs=0, weights=0)

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        return np.ones(shape)


@dataclass(frozen=True)
class BatchNorm(Normalization):
    """Batch normalization: statistics of each channel over samples and pixels.

    Weight and bias have the shape ``(C,)``.

    Attributes
    ----------
    momentum : float
        Weight of the new batch in the running mean and variance (PyTorch's convention).
    """

    momentum: float = 0.1
    kind: ClassVar[str] = "batchnorm"
    statistics: ClassVar[str] = "batch"

    def buffers(self, x: Shape) -> int:
        """Running mean and variance of each channel; none with another layer's weights."""
        return 0 if self.weights_of else 2 * x[0]


@dataclass(frozen=True)
class GroupNorm(Normalization):
    """Group normalization: statistics of each sample over pixels and a group of channels.

    Weight and bias have the shape ``(C,)``. In instance normalization each channel is a group.

    Attributes
    ----------
    groups : int
        A divisor of the number of channels.
    """

    groups: Extent = 1
    kind: ClassVar[str] = "groupnorm"
    statistics: ClassVar[str] = "sample"

    def statistics_groups(self, channels: int) -> int:
        return self.groups

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if self.groups < 1 or x[0] % self.groups:
            raise InputError(f"layer '{self.name}' ({self.kind}): {self.groups} groups do not "
                             f"divide {x[0]} channels; use a divisor of {x[0]}")
        return x


@dataclass(frozen=True)
class LayerNorm(Normalization):
    """Layer normalization: statistics of each whole sample.

    Weight and bias have the shape of a sample.
    """

    groups: ClassVar[int] = 1
    kind: ClassVar[str] = "layernorm"
    statistics: ClassVar[str] = "sample"

    def weight_shape(self, x: Shape) -> Shape:
        return x if self.affine else ()


@dataclass(frozen=True)
class ChannelNorm(Normalization):
    """Layer normalization over the channels of each pixel, as in ConvNeXt.

    Weight and bias have the shape ``(C,)``. Each output channel needs all input channels.
    """

    kind: ClassVar[str] = "channelnorm"
    elementwise: ClassVar[bool] = False
    gathers_channels: ClassVar[bool] = True

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Full() if axis == "c" else Same()


#: Normalizations with statistics per sample.
SampleNorm: TypeAlias = GroupNorm | LayerNorm
