"""Normalisation layers: local response normalisation and batch normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.network.base import Layer, Shape
from hpcpar.network.receptive_field import Relation, Same, Window


@dataclass(frozen=True)
class LRN(Layer):
    """Local response normalisation: x / (k + alpha / size * sum of squares) ** beta.

    The sum runs over a window of `size` channels, see `window`.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    kind: ClassVar[str] = "lrn"

    def window(self) -> Window:
        """Window of channels in the sum: size // 2 before a channel, (size - 1) // 2 after it."""
        return Window(self.size, 1, self.size // 2)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return self.window() if axis == "c" else Same()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x) * (2 * self.size + 3))


@dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalisation per channel: (x - mean) / sqrt(variance + eps) * gamma + beta.

    Mean and variance are taken over samples and image. gamma ``(C,)`` is the weight, beta ``(C,)``
    the bias. The layer is elementwise given the statistics; the runtime sums the statistics over
    ranks.

    Attributes
    ----------
    eps : float
        Number added to the variance.
    momentum : float
        Weight of the new batch in the running mean and variance (PyTorch's convention).
    """

    eps: float = 1e-5
    momentum: float = 0.1
    kind: ClassVar[str] = "batchnorm"
    has_weights: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    def weight_shape(self, x: Shape) -> Shape:
        return (x[0],)

    def bias_shape(self, x: Shape) -> Shape:
        return (x[0],)

    def buffers(self, x: Shape) -> int:
        """Running mean and variance of each channel."""
        return 2 * x[0]

    def forward_flops(self, x: Shape) -> float:
        """Five flops per element: three for sum and sum of squares, two for the affine map."""
        return 5.0 * math.prod(x)
