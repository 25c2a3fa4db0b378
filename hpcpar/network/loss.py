"""The last layer: what training makes small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcpar.network.base import Layer, Shape, need_features
from hpcpar.network.receptive_field import Full, Relation, Same


@dataclass(frozen=True)
class Loss(Layer):
    """The last layer: its output is its gradient seed; the loss itself is a sum over its elements.
    """

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_features(self, x)
        return x


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over the batch of -log softmax at the label; every class is needed at once."""

    kind: ClassVar[str] = "softmax_cross_entropy"

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Same() if axis == "n" else Full()


@dataclass(frozen=True)
class LogisticCrossEntropy(Loss):
    """OWT's independent logistic units: mean over the batch of the sum of binary cross-entropies.

    Needs no normalisation across classes, so it can stay split by class.
    """

    kind: ClassVar[str] = "logistic_cross_entropy"


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Regression: mean over batch and outputs of the squared difference to the target; can stay
    split by output.
    """

    kind: ClassVar[str] = "mean_squared_error"
