"""Loss layers: the last layer of a network, which training minimises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.base import NO_WORK, Layer, PassWork, Shape, need_features
from hpcpar.network.receptive_field import Full, Proportional, Relation, Same


@dataclass(frozen=True)
class Loss(Layer):
    """Base class of losses.

    The output tensor is the gradient of the loss with respect to the input; the loss value is a
    sum over elements. The input is features (C,), or an image with a prediction for each pixel.
    """

    is_loss: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()
    #: True if the ground truth has a number for each output, not a class.
    takes_targets: ClassVar[bool] = False
    #: True if the operator counts samples whose largest output is that of their class.
    counts_correct: ClassVar[bool] = False
    #: True where the caller computes the loss and updates the weights: the schedule has neither.
    outside: ClassVar[bool] = False

    def truth_shape(self, x: Shape) -> Shape:
        """Shape of a sample's ground truth: a class of the sample, or one of each pixel."""
        return x[1:]

    def work(self, op: str) -> PassWork:
        return PassWork(outputs=2 if op == "backward" else 1)


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over batch and pixels of -log softmax at the label; the softmax needs all classes."""

    kind: ClassVar[str] = "softmax_cross_entropy"
    splits_channels: ClassVar[bool] = False
    gathers_channels: ClassVar[bool] = True
    counts_correct: ClassVar[bool] = True

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Full() if axis == "c" else Same()


@dataclass(frozen=True)
class LogisticCrossEntropy(Loss):
    """Mean over the batch of the summed binary cross-entropies of independent logistic units.

    This is the loss of One Weird Trick (OWT). Without normalisation across classes the layer can
    stay split by class.
    """

    kind: ClassVar[str] = "logistic_cross_entropy"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        need_features(self, x)
        return x


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean over batch, outputs and pixels of the squared error, for regression.

    The layer can stay split by output.
    """

    kind: ClassVar[str] = "mean_squared_error"
    takes_targets: ClassVar[bool] = True

    def truth_shape(self, x: Shape) -> Shape:
        return x


@dataclass(frozen=True)
class Outputs(Loss):
    """The ends of a network whose loss is the caller's: one output, or several.

    Each rank has all channels of its part of the samples and pixels. Images of other extents than
    the first output's (deep supervision) are cut in the same proportions.

    Attributes
    ----------
    pixels : tuple of int
        Extents of the first output's image.
    """

    pixels: Shape = ()
    kind: ClassVar[str] = "outputs"
    merges: ClassVar[bool] = True
    least_inputs: ClassVar[int] = 1
    splits_channels: ClassVar[bool] = False
    gathers_channels: ClassVar[bool] = True
    outside: ClassVar[bool] = True

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        for name, shape in zip(self.inputs[1:], more, strict=False):
            if len(shape) != len(x):
                raise InputError(f"outputs '{self.inputs[0]}' of shape {x} and '{name}' of shape "
                                 f"{shape}: all must be features, or all images; return one kind")
        return x

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "c":
            return Full()
        at = "dhw"[-len(self.pixels):].find(axis) if which else -1
        return Same() if at < 0 else Proportional(self.pixels[at])

    def work(self, op: str) -> PassWork:
        return NO_WORK
