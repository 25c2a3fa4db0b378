"""Layers with several inputs: sum (residual blocks), product (gates), concatenation (inception)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.layers.base import NO_WORK, Layer, PassWork, Shape
from hpcpar.network.layers.formula import Steps
from hpcpar.network.receptive_field import Offset, Relation, Same


@dataclass(frozen=True)
class Add(Layer):
    """Sum of two or more inputs of equal shape."""

    kind: ClassVar[str] = "add"
    elementwise: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()
    lends_output: ClassVar[bool] = True

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        for name, shape in zip(self.inputs[1:], more, strict=False):
            if shape != x:
                raise InputError(f"layer '{self.name}' (add) adds '{self.inputs[0]}' of shape {x} "
                                 f"and '{name}' of shape {shape}; shapes must agree")
        return x

    def forward_flops(self, x: Shape) -> float:
        return float((len(self.inputs) - 1) * math.prod(x))

    @property
    def formula(self) -> Steps:
        sums = (("add", f"t{i - 1}", f"x{i + 1}") for i in range(1, len(self.inputs) - 1))
        return (("add", "x0", "x1"), *sums)

    def work(self, op: str) -> PassWork:
        """The gradient of each input equals the output's, so that backward computes nothing."""
        if op == "backward":
            return NO_WORK
        return super().work(op)


@dataclass(frozen=True)
class Multiply(Layer):
    """Product of two inputs of equal shape, or of an image and one number per channel.

    The latter is the gate of squeeze-and-excitation, whose second input is features ``(C,)``. Ranks
    that cut the image hold partial sums of the gate's gradient.
    """

    kind: ClassVar[str] = "multiply"
    merges: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ("input",)
    lends_output: ClassVar[bool] = True

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if len(more) != 1 or more[0] not in (x, x[:1]):
            raise InputError(
                f"layer '{self.name}' (multiply) reads shapes {', '.join(map(str, (x, *more)))}; "
                f"name two inputs of one shape, or an image and then one feature per channel")
        return x

    @property
    def formula(self) -> Steps:
        return (("mul", "x0", "x1"),)

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x))


@dataclass(frozen=True)
class Concat(Layer):
    """Concatenation of two or more inputs along the channel axis.

    Attributes
    ----------
    channels : tuple of int
        Channels of each input, in order; `Graph.add` fills them in.
    """

    channels: Shape = ()
    kind: ClassVar[str] = "concat"
    merges: ClassVar[bool] = True
    backward_reads: ClassVar[tuple[str, ...]] = ()
    #: The readers of a concatenation all need all channels: one gather serves them.
    gathers_channels: ClassVar[bool] = True

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        shapes = (x, *more)
        if tuple(s[0] for s in shapes) != self.channels:
            raise InputError(
                f"layer '{self.name}' (concat) expects inputs with {self.channels} channels, but "
                f"they have {tuple(s[0] for s in shapes)}; build it with Graph, which counts them")
        for name, shape in zip(self.inputs, shapes, strict=False):
            if shape[1:] != x[1:]:
                raise InputError(
                    f"layer '{self.name}' (concat) joins '{self.inputs[0]}' of shape {x} and "
                    f"'{name}' of shape {shape}; all but the channels must agree")
        return (sum(self.channels), *x[1:])

    @cached_property
    def _offsets(self) -> tuple[Offset, ...]:
        starts = itertools.accumulate((0, *self.channels[:-1]))
        return tuple(map(Offset, starts, self.channels))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return self._offsets[which] if axis == "c" else Same()

    def forward_flops(self, x: Shape) -> float:
        return 0.0

    def work(self, op: str) -> PassWork:
        return PassWork(0.0, inputs=0, outputs=2, weights=0)
