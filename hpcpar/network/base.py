"""What all layers have in common: geometry, weights and flops, per sample.

A sample's shape is ``(C,)`` for features, ``(C, H, W)`` for an image or ``(C, D, H, W)`` for a
volume; the sample axis ``n`` comes first in every tensor. Flops count a multiply and an add as two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.receptive_field import Relation, Same

Shape = tuple[int, ...]
Pair = tuple[int, int]
Triple = tuple[int, int, int]

#: Names of a tensor's axes by the number of its dimensions, the sample axis included.
AXES: dict[int, tuple[str, ...]] = {1: ("n",), 2: ("n", "c"), 4: ("n", "c", "h", "w"),
                                    5: ("n", "c", "d", "h", "w")}


def axes_of(sample: Shape) -> tuple[str, ...]:
    """Axis names of the batch tensor whose samples have this shape."""
    return AXES[len(sample) + 1]


def text_of(shape: Iterable[object]) -> str:
    """As in 3x224x224."""
    return "x".join(map(str, shape))


@dataclass(frozen=True)
class Layer:
    """One operation. `inputs` names the layers whose outputs it reads.

    Methods that take `x` alone mean the sample shape of the first input: only layers with `merges`
    read more.
    """

    name: str
    inputs: tuple[str, ...] = ()
    kind: ClassVar[str] = ""
    #: True where the output may overwrite nothing and reads one element of each input per output
    #: element.
    elementwise: ClassVar[bool] = False
    #: True for a matrix product of weights and inputs (the papers' layers i = 1..L): convolutions
    #: and linear layers.
    products: ClassVar[bool] = False
    #: True where the layer reads two or more inputs.
    merges: ClassVar[bool] = False

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        """Shape of an output sample, given those of the samples of all inputs."""
        return x

    def relation(self, axis: str, x: Shape, which: int = 0) -> Relation:
        """What an interval of the output's `axis` needs of the same axis of input number `which`,
        of shape `x`.
        """
        return Same()

    def weight_shape(self, x: Shape) -> Shape:
        """Shape of the weight, ``[out, in, ...]``; empty without weights. Row i makes output
        channel i.
        """
        return ()

    def bias_shape(self, x: Shape) -> Shape:
        return ()

    def granule(self, x: Shape) -> int:
        """Output features that may not be cut apart (Flatten: the pixels of a channel)."""
        return 1

    def parameters(self, x: Shape) -> int:
        """Weights and biases."""
        w, b = self.weight_shape(x), self.bias_shape(x)
        return (math.prod(w) if w else 0) + (math.prod(b) if b else 0)

    def buffers(self, x: Shape) -> int:
        """Values kept between iterations that are not trained (running statistics)."""
        return 0

    def forward_flops(self, x: Shape) -> float:
        """Flops of the forward pass for one sample."""
        return float(math.prod(self.output_shape(x)))

    @property
    def has_weights(self) -> bool:
        return False


@dataclass(frozen=True)
class Input(Layer):
    """The samples as they come from the data file."""

    shape: Shape = ()
    kind: ClassVar[str] = "input"

    def output_shape(self, x: Shape, *more: Shape) -> Shape:
        if len(self.shape) + 1 not in AXES or not self.shape or min(self.shape) < 1:
            raise InputError(f"input '{self.name}' has shape {self.shape}; give positive numbers as (C,), (C, H, W) or (C, D, H, W)")
        return self.shape

    def forward_flops(self, x: Shape) -> float:
        return 0.0


def need_image(layer: Layer, x: Shape, dimensions: int | None = None) -> None:
    """Raise an InputError unless `x` is an image, of so many dimensions where they are given."""
    if (len(x) - 1 != dimensions) if dimensions else len(x) < 3:
        want = {2: "an image C x H x W", 3: "a volume C x D x H x W", None: "an image"}[dimensions]
        raise InputError(
            f"layer '{layer.name}' ({layer.kind}) needs {want}, but its input has shape {x}")


def need_features(layer: Layer, x: Shape) -> None:
    """Raise an InputError unless `x` is a vector."""
    if len(x) != 1:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) needs features, but its input has shape {x}; put a flatten before it")
