"""Loss layers: the last layer of a network, which training minimizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hpcpar.errors import InputError, require_free
from hpcpar.io.schema import Share
from hpcpar.network.layers.base import NO_WORK, Layer, PassWork, Shape, need_features
from hpcpar.network.receptive_field import Full, Proportional, Relation, Same

#: Losses by kind, from this module and imported ones; a network can end in any of them.
LOSSES: dict[str, type[Loss]] = {}


@dataclass(frozen=True)
class Loss(Layer):
    """Base class of losses.

    The input is features (C,), or an image with a prediction for each pixel. The output tensor is
    the gradient of the loss with respect to the input; the loss value is a sum over elements.
    """

    is_loss: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()
    #: True if the ground truth is a number for each output instead of a class.
    takes_targets: ClassVar[bool] = False
    #: True if the operator counts correctly classified samples.
    counts_correct: ClassVar[bool] = False
    #: True if the caller computes the loss and updates the weights, so that the schedule does not.
    outside: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls) and not cls.outside:
            known = LOSSES.setdefault(cls.kind, cls)
            require_free("loss", cls.kind, known.__module__, cls.__module__)
            LOSSES[cls.kind] = cls

    def smoothed(self, share: float) -> Loss:
        """This loss with label smoothing: it spreads a share of each label over all classes."""
        raise InputError(f"the loss {self.kind} has no label smoothing: drop --label-smoothing, or "
                         f"use --loss {SoftmaxCrossEntropy.kind}")

    def truth_shape(self, x: Shape) -> Shape:
        """Shape of a sample's ground truth: one class per sample, or one per pixel."""
        return x[1:]

    def work(self, op: str) -> PassWork:
        return PassWork(outputs=2 if op == "backward" else 1)


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over batch and pixels of -sum_k q_k log p_k, with the softmax p over all K classes.

    q is 1 at the label and 0 elsewhere. With label smoothing s, q is 1 - s + s / K at the label and
    s / K elsewhere (``torch.nn.CrossEntropyLoss(label_smoothing=s)``).
    """

    label_smoothing: Share = 0.0
    kind: ClassVar[str] = "softmax_cross_entropy"
    splits_channels: ClassVar[bool] = False
    gathers_channels: ClassVar[bool] = True
    counts_correct: ClassVar[bool] = True

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Full() if axis == "c" else Same()

    def smoothed(self, share: float) -> Loss:
        return replace(self, label_smoothing=share)


@dataclass(frozen=True)
class DiceCrossEntropy(SoftmaxCrossEntropy):
    """Softmax cross-entropy plus a soft Dice loss, for images with a class for each pixel.

    The Dice loss is the mean over samples n and classes k of

    1 - (2 sum_i p t + e) / (sum_i p + sum_i t + e), e = 1e-5,

    with the softmax p and the label t (1 or 0) at each pixel i of the sample. All classes count,
    the background too. This is MONAI's ``DiceCELoss(to_onehot_y=True, softmax=True)``. Ranks that
    share a sample's pixels add up their sums, so that every cut gives the same loss.
    """

    kind: ClassVar[str] = "dice_cross_entropy"
    statistics: ClassVar[str] = "sample"
    sums_bytes: ClassVar[int] = 8

    def statistics_groups(self, channels: int) -> int:
        return channels

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if len(x) < 3:
            raise InputError(f"layer '{self.name}' ({self.kind}) needs an image with a class for "
                             f"each pixel, but its input has shape {x}; use {super().kind}")
        return x


@dataclass(frozen=True)
class LogisticCrossEntropy(Loss):
    """Mean over the batch of the summed binary cross-entropies of independent logistic units.

    One Weird Trick (OWT) uses this loss. It does not normalize across classes, so the layer can
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
    """One or several outputs of a network whose loss the caller computes.

    Each rank has all channels of its samples and pixels. Images whose extents differ from the first
    output's (deep supervision) are cut in the same proportions.

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
