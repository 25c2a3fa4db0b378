"""Elementwise layers without weights, and the flatten layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.network.base import Layer, Shape
from hpcpar.network.receptive_field import Full, Granule, Relation, Same


@dataclass(frozen=True)
class ReLU(Layer):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"
    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Dropout(Layer):
    """Dropout with probability `rate`; the mask depends on the global index of an element only."""

    rate: float = 0.5
    kind: ClassVar[str] = "dropout"
    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Flatten(Layer):
    """Images to features, in the order of channels."""

    kind: ClassVar[str] = "flatten"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        return (math.prod(x),)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n":
            return Same()
        return Granule(self.granule(x)) if axis == "c" else Full()

    def granule(self, x: Shape) -> int:
        return math.prod(x[1:])

    def forward_flops(self, x: Shape) -> float:
        return 0.0
