"""Activation functions, dropout, and the flatten layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.io.schema import Share
from hpcpar.network.layers.base import LARGEST_FLOAT, NO_WORK, Layer, PassWork, Shape
from hpcpar.network.receptive_field import Full, Granule, Relation, Same


@dataclass(frozen=True)
class Activation(Layer):
    """Base class of elementwise functions y = f(x) with at most two numbers as fields."""

    kernel_family: ClassVar[str] = "activation"
    elementwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def numbers(self) -> tuple[float, float]:
        """The subclass's fields, filled up with zeros."""
        given = [float(getattr(self, f.name)) for f in fields(self)[len(fields(Layer)):]]
        a, b, *_ = (*given, 0.0, 0.0)
        return a, b


@dataclass(frozen=True)
class ReLU(Activation):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"

    def lends_to(self, reader: Layer) -> bool:
        """Only dropout: a dropped element looks inactive here, but its gradient is zero anyway."""
        return isinstance(reader, Dropout)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """x where x > 0, else slope * x."""

    slope: float = 0.01
    kind: ClassVar[str] = "leaky_relu"

    def __post_init__(self) -> None:
        if self.slope < 0:
            raise InputError(f"layer '{self.name}' (leaky_relu): slope={self.slope}; give a number "
                             "of at least 0")


@dataclass(frozen=True)
class Clip(Activation):
    """x clipped to two bounds, by default ReLU6; the gradient at a bound is 0, as in PyTorch.

    Infinite bounds become the largest float32.
    """

    low: float = 0.0
    high: float = 6.0
    kind: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # files need finite numbers
            finite = min(max(getattr(self, name), -LARGEST_FLOAT), LARGEST_FLOAT)
            object.__setattr__(self, name, finite)
        if not self.low < self.high:
            raise InputError(f"layer '{self.name}' (clip): low={self.low}, high={self.high}; low "
                             "must be less than high")


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    kind: ClassVar[str] = "sigmoid"


@dataclass(frozen=True)
class Tanh(Activation):
    """Hyperbolic tangent."""

    kind: ClassVar[str] = "tanh"


@dataclass(frozen=True)
class ELU(Activation):
    """scale * (x where x > 0, else alpha * (exp(x) - 1)); SELU is a special case."""

    alpha: float = 1.0
    scale: float = 1.0
    kind: ClassVar[str] = "elu"

    def __post_init__(self) -> None:
        if min(self.alpha, self.scale) <= 0:
            raise InputError(f"layer '{self.name}' (elu): alpha={self.alpha}, scale={self.scale}; "
                             "give positive numbers")


@dataclass(frozen=True)
class Mish(Activation):
    """x * tanh(log(1 + exp(x)))."""

    kind: ClassVar[str] = "mish"
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)


@dataclass(frozen=True)
class SiLU(Activation):
    """x * sigmoid(x)."""

    kind: ClassVar[str] = "silu"
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)


@dataclass(frozen=True)
class GELU(Activation):
    """x times the normal distribution function of x, or its `tanh` approximation."""

    tanh: bool = False
    kind: ClassVar[str] = "gelu"
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)

    def variant(self, channels: int, whole: int) -> str:
        return " tanh" if self.tanh else ""


@dataclass(frozen=True)
class Affine(Activation):
    """scale * x + shift, with the same numbers for all elements."""

    scale: float = 1.0
    shift: float = 0.0
    kind: ClassVar[str] = "affine"
    backward_reads: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Dropout(Layer):
    """Dropout with probability `rate`; the mask depends only on an element's global index.

    Attributes
    ----------
    unit : {'value', 'channel', 'sample'}
        Unit of dropping: single values, channels of a sample (PyTorch's Dropout2d), or whole
        samples (stochastic depth).
    """

    rate: Share = 0.5
    unit: str = "value"
    kind: ClassVar[str] = "dropout"
    kernel_family: ClassVar[str] = "activation"
    elementwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.unit not in ("value", "channel", "sample"):
            raise InputError(f"layer '{self.name}' (dropout): unit '{self.unit}'; use value, "
                             "channel or sample")

    @property
    def kept_share(self) -> float:  # type: ignore[override]
        return 1.0 - self.rate

    def kept_bytes(self, item_bytes: int) -> int:
        """The mask; masks of channels or samples are small."""
        return item_bytes if self.unit == "value" else 0


@dataclass(frozen=True)
class Flatten(Layer):
    """Images to features, channel by channel: the same memory in another shape."""

    kind: ClassVar[str] = "flatten"
    output_flops: ClassVar[float] = 0.0
    in_place: ClassVar[bool] = True
    is_view: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        return (math.prod(x),)

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        if axis == "n":
            return Same()
        return Granule(self.granule(x)) if axis == "c" else Full()

    def granule(self, x: Shape) -> int:
        return math.prod(x[1:])

    def work(self, op: str) -> PassWork:
        return NO_WORK
