"""Activation functions, dropout, and the flatten layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import LARGEST_FLOAT, NO_WORK, Layer, PassWork, Shape
from hpcpar.network.receptive_field import Full, Granule, Relation, Same
from hpcpar.schema import Share


@dataclass(frozen=True)
class Activation(Layer):
    """Base class of functions of one element, y = f(x); its fields are at most two numbers."""

    kernel_family: ClassVar[str] = "activation"
    elementwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ("output",)

    @property
    def numbers(self) -> tuple[float, float]:
        """The layer's own fields, 0 where there are none."""
        own = [float(getattr(self, f.name)) for f in fields(self)[len(fields(Layer)):]]
        a, b, *_ = (*own, 0.0, 0.0)
        return a, b


@dataclass(frozen=True)
class ReLU(Activation):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"

    def lends_to(self, reader: Layer) -> bool:
        """To dropout alone: an element that it drops is zero here, but its gradient is zero too.
        """
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
    """x between two bounds, by default ReLU6; the gradient is 0 at a bound, as in PyTorch's.

    Infinite bounds stand for the largest float32.
    """

    low: float = 0.0
    high: float = 6.0
    kind: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # finite, for files
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
    """scale * (x where x > 0, else alpha * (exp(x) - 1)); SELU has two numbers of its own."""

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
    """x times the normal distribution's function of x; with `tanh` its usual approximation."""

    tanh: bool = False
    kind: ClassVar[str] = "gelu"
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)

    def variant(self, channels: int, whole: int) -> str:
        return " tanh" if self.tanh else ""


@dataclass(frozen=True)
class Affine(Activation):
    """scale * x + shift, the same numbers for all elements."""

    scale: float = 1.0
    shift: float = 0.0
    kind: ClassVar[str] = "affine"
    backward_reads: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Dropout(Layer):
    """Dropout with probability `rate`; the mask depends on the global index of an element only.

    Attributes
    ----------
    unit : {'value', 'channel', 'sample'}
        What is dropped together: nothing, a channel of a sample (PyTorch's Dropout2d), or a whole
        sample (stochastic depth).
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
    def kept_share(self) -> float:
        return 1.0 - self.rate

    def kept_bytes(self, item_bytes: int) -> int:
        """The mask; of channels or samples it is small."""
        return item_bytes if self.unit == "value" else 0


@dataclass(frozen=True)
class Flatten(Layer):
    """Images to features, in the order of channels: the same memory in another shape."""

    kind: ClassVar[str] = "flatten"
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

    def forward_flops(self, x: Shape) -> float:
        return 0.0

    def work(self, op: str) -> PassWork:
        return NO_WORK
