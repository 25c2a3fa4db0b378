"""Normalisation: across neighbouring channels, and by the statistics of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.network.base import Layer, Shape
from hpcpar.network.receptive_field import Relation, Same, Window


@dataclass(frozen=True)
class LRN(Layer):
    """Local response normalisation across channels: x / (k + alpha / size * sum of squares) **
    beta.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    kind: ClassVar[str] = "lrn"

    def window(self) -> Window:
        """The channels a channel is normalised by: size // 2 before it, (size - 1) // 2 after it.
        """
        return Window(self.size, 1, self.size // 2)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return self.window() if axis == "c" else Same()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x) * (2 * self.size + 3))


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalisation of every channel over samples and image: (x - mean) / sqrt(variance +
    eps) * gamma + beta.

    gamma is the weight ``(C,)``, beta the bias ``(C,)``. Given the statistics the layer is
    elementwise; the sums over a batch that is cut over ranks belong to whoever runs it.

    Attributes
    ----------
    eps : float
        Added to the variance.
    momentum : float
        Part of the new batch in the running mean and variance.
    """

    eps: float = 1e-5
    momentum: float = 0.1
    kind: ClassVar[str] = "batchnorm"
    elementwise: ClassVar[bool] = True

    def weight_shape(self, x: Shape) -> Shape:
        return (x[0],)

    def bias_shape(self, x: Shape) -> Shape:
        return (x[0],)

    def buffers(self, x: Shape) -> int:
        """Running mean and variance of every channel."""
        return 2 * x[0]

    def forward_flops(self, x: Shape) -> float:
        """Three per element for sum and sum of squares, two for one factor and one addend per
        channel.
        """
        return 5.0 * math.prod(x)

    @property
    def has_weights(self) -> bool:
        return True
