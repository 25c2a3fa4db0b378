"""Activation functions, formulas, dropout, and the flatten layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcpar.errors import InputError
from hpcpar.io.schema import Share
from hpcpar.network.layers.base import LARGEST_FLOAT, NO_WORK, Layer, PassWork, Shape
from hpcpar.network.layers.formula import (
    Argument,
    Steps,
    derivatives,
    fault,
    flops,
    formula,
    reads,
)
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

    @property
    def formula(self) -> Steps:
        return formula(("relu", "x0"))


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """x where x > 0, else slope * x."""

    slope: float = 0.01
    kind: ClassVar[str] = "leaky_relu"

    def __post_init__(self) -> None:
        if self.slope < 0:
            raise InputError(f"layer '{self.name}' (leaky_relu): slope={self.slope}; give a number "
                             "of at least 0")

    @property
    def formula(self) -> Steps:
        return formula(("where", ("greater", "x0", 0.0), "x0", ("mul", "x0", self.slope)))


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

    @property
    def formula(self) -> Steps:
        return formula(("clamp_max", ("clamp_min", "x0", self.low), self.high))


@dataclass(frozen=True)
class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    kind: ClassVar[str] = "sigmoid"

    @property
    def formula(self) -> Steps:
        return formula(("sigmoid", "x0"))


@dataclass(frozen=True)
class Tanh(Activation):
    """Hyperbolic tangent."""

    kind: ClassVar[str] = "tanh"

    @property
    def formula(self) -> Steps:
        return formula(("tanh", "x0"))


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

    @property
    def formula(self) -> Steps:
        return formula(("mul", "x0", ("sigmoid", "x0")))


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

    @property
    def formula(self) -> Steps:
        return (("mul", "x0", self.scale), ("add", "t0", self.shift))


@dataclass(frozen=True)
class Pointwise(Layer):
    """A formula of elementwise operators over inputs of one shape, numbers and one parameter.

    The backward pass computes what it needs of the formula again, from the inputs.

    Attributes
    ----------
    steps : tuple of tuple
        The formula; see `hpcpar.network.layers.formula`. For example, log(1 + exp(x)) is
        ``(("exp", "x0"), ("add", "t0", 1.0), ("log", "t1"))``.
    parameter : tuple of int
        Shape of the parameter "w": one number per channel ``(C,)``, one for all ``(1,)``, or as
        many axes as a sample; it is repeated along axes with the extent 1. () if there is none.
    initial : float
        Initial value of the parameter.
    """

    steps: Steps = ()
    parameter: Shape = ()
    initial: float = 1.0
    kind: ClassVar[str] = "pointwise"
    kernel_family: ClassVar[str] = "activation"
    elementwise: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    least_inputs: ClassVar[int] = 1
    lends_output: ClassVar[bool] = True

    @property
    def has_weights(self) -> bool:  # type: ignore[override]
        return bool(self.parameter)

    @property
    def splits_channels(self) -> bool:  # type: ignore[override]
        return self.parameter[:1] != (1,)

    @property
    def gathers_channels(self) -> bool:  # type: ignore[override]
        return not self.splits_channels

    @cached_property
    def input_gradients(self) -> tuple[Steps, tuple[Argument, ...]]:
        """Steps of all inputs' gradients, and each one's result."""
        return derivatives(self.steps, [f"x{i}" for i in range(len(self.inputs))])

    @cached_property
    def parameter_gradient(self) -> tuple[Steps, tuple[Argument, ...]]:
        """Steps of the parameter's gradient before its sum, and its result."""
        return derivatives(self.steps, ["w"])

    @cached_property
    def backward_reads(self) -> tuple[str, ...]:  # type: ignore[override]
        both = (*self.input_gradients[0], *(self.parameter_gradient[0] if self.parameter else ()))
        return ("input",) if any(reads(both, f"x{i}") for i in range(len(self.inputs))) else ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        names = [f"x{i}" for i in range(len(self.inputs))] + ["w"] * self.has_weights
        wrong = fault(self.steps, names)
        if wrong:
            raise InputError(f"layer '{self.name}' (pointwise): {wrong}")
        if any(shape != x for shape in more):
            raise InputError(f"layer '{self.name}' (pointwise) reads shapes "
                             f"{', '.join(map(str, (x, *more)))}; shapes must agree")
        extents = zip(self.parameter, x, strict=False)
        if len(self.parameter) not in (0, 1, len(x)) or any(n not in (1, e) for n, e in extents):
            raise InputError(f"layer '{self.name}' (pointwise): a parameter {self.parameter} for "
                             f"samples {x}; give it 1 or {len(x)} axes, each of the sample's "
                             "extent or 1")
        return x

    def weight_shape(self, x: Shape) -> Shape:
        return self.parameter

    def initial_row(self, stream: np.random.Generator, shape: Shape, deviation: float
                    ) -> npt.NDArray[np.float64]:
        return np.full(shape, self.initial)

    @property
    def output_flops(self) -> float:  # type: ignore[override]
        return flops(self.steps)

    def work(self, op: str) -> PassWork:
        """A backward pass reads inputs and the output's gradient, and writes gradients."""
        if op == "forward":
            return PassWork()
        steps = (self.input_gradients if op == "backward" else self.parameter_gradient)[0]
        read = bool(self.backward_reads)
        return PassWork(flops(steps) / max(1.0, flops(self.steps)),
                        inputs=read + (op == "backward"), outputs=1)

    def variant(self, channels: int, whole: int) -> str:
        """Formulas of the same operators take the same time."""
        return " " + "+".join(str(step[0]) for step in self.steps)

    @property
    def formula(self) -> Steps:
        return self.steps


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
