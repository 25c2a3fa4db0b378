"""Reductions along axes of a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpcpar.errors import InputError
from hpcpar.network.layers.base import AXES, Layer, PassWork, Shape
from hpcpar.network.receptive_field import Full, Relation, Same


@dataclass(frozen=True)
class Reduce(Layer):
    """The sum, mean or maximum of a sample along some axes, which keep the extent 1.

    Attributes
    ----------
    axes : str
        Letters of the axes: ``c`` for channels; ``d``, ``h``, ``w`` for the image.
    how : {'sum', 'mean', 'max', 'first'}
        ``max`` shares the gradient among equal maxima, ``first`` gives it to the first one.
    """

    axes: str = "c"
    how: Literal["sum", "mean", "max", "first"] = "sum"
    kind: ClassVar[str] = "reduce"
    kernel_family: ClassVar[str] = "pooling"

    @property
    def gathers_channels(self) -> bool:  # type: ignore[override]
        return "c" in self.axes

    @property
    def backward_reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("input", "output") if self.how in ("max", "first") else ()

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        letters = AXES[len(x) + 1][1:]
        if not self.axes or len(set(self.axes)) < len(self.axes) or not set(self.axes) <= {
                *letters}:
            raise InputError(f"layer '{self.name}' (reduce): axes '{self.axes}' of samples {x}; "
                             f"give different ones of '{''.join(letters)}'")
        if self.how == "first" and len(self.axes) > 1:
            raise InputError(f"layer '{self.name}' (reduce): 'first' of axes '{self.axes}'; give "
                             "one axis")
        return tuple(1 if a in self.axes else n for a, n in zip(letters, x, strict=True))

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        return Full() if axis in self.axes else Same()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x))

    def work(self, op: str) -> PassWork:
        if op == "backward":
            return PassWork(inputs=2 if self.backward_reads else 1, outputs=1)
        return PassWork()

    def variant(self, channels: int, whole: int) -> str:
        return f" {self.how} {self.axes}"
