"""The layers: geometry, weights and flops of each, per sample.

A sample's shape is ``(C,)`` for features or ``(C, H, W)`` for an image; the sample axis ``n`` comes first in
every tensor. Flops count a multiply and an add as two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hpcpar.errors import InputError
from hpcpar.network.relation import Full, Granule, Groups, Relation, Same, Window

Shape = tuple[int, ...]
Pair = tuple[int, int]

#: Names of a tensor's axes by the number of its dimensions, the sample axis included.
AXES: dict[int, tuple[str, ...]] = {1: ("n",), 2: ("n", "c"), 4: ("n", "c", "h", "w"), 5: ("n", "c", "d", "h", "w")}


def axes_of(sample: Shape) -> tuple[str, ...]:
    """Axis names of the batch tensor whose samples have this shape."""
    return AXES[len(sample) + 1]


@dataclass(frozen=True)
class Layer:
    """One operation. `inputs` names the layers whose outputs it reads."""

    name: str
    inputs: tuple[str, ...] = ()
    kind: ClassVar[str] = ""
    #: True where the output may overwrite nothing and reads one input element per output element.
    elementwise: ClassVar[bool] = False

    def output_shape(self, x: Shape) -> Shape:
        """Shape of an output sample, given that of an input sample."""
        return x

    def relation(self, axis: str, x: Shape) -> Relation:
        """What an interval of the output's `axis` needs of the input's `axis`."""
        return Same()

    def weight_shape(self, x: Shape) -> Shape:
        """Shape of the weight, ``[out, in, ...]``; empty without weights. Row i makes output channel i."""
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

    def forward_flops(self, x: Shape) -> float:
        """Flops of the forward pass for one sample."""
        return float(math.prod(self.output_shape(x)))

    @property
    def has_weights(self) -> bool:
        return False


@dataclass(frozen=True)
class Input(Layer):
    """The images as they come from the data file."""

    shape: Shape = ()
    kind: ClassVar[str] = "input"

    def output_shape(self, x: Shape) -> Shape:
        return self.shape

    def forward_flops(self, x: Shape) -> float:
        return 0.0


def _image(layer: Layer, x: Shape) -> None:
    if len(x) != 3:
        raise InputError(f"layer '{layer.name}' ({layer.kind}) needs an image C x H x W, but its input has shape {x}")


def _windows_out(layer: Layer, x: Shape, windows: tuple[Window, ...], ceil_mode: bool) -> Shape:
    """Output extents of sliding windows, as PyTorch computes them (the last ceil-mode window starts inside)."""
    out = []
    for size, win in zip(x[1:], windows, strict=True):
        room = size + 2 * win.padding - win.span
        if room < 0:
            raise InputError(f"layer '{layer.name}' ({layer.kind}): a window of {win.span} does not fit an input of {size} "
                             f"with padding {win.padding}; use larger images or more padding")
        n = (room + (win.stride - 1 if ceil_mode else 0)) // win.stride + 1
        if ceil_mode and (n - 1) * win.stride >= size + win.padding:
            n -= 1
        out.append(n)
    return tuple(out)


@dataclass(frozen=True)
class Conv2d(Layer):
    """Two-dimensional convolution (cross-correlation, as in every framework)."""

    out_channels: int = 1
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    bias: bool = True
    kind: ClassVar[str] = "conv2d"

    def windows(self) -> tuple[Window, ...]:
        """The window of each spatial axis (h, w)."""
        return tuple(Window(*a) for a in zip(self.kernel, self.stride, self.padding, self.dilation, strict=True))

    def output_shape(self, x: Shape) -> Shape:
        _image(self, x)
        if x[0] % self.groups or self.out_channels % self.groups:
            raise InputError(f"layer '{self.name}': {self.groups} groups divide neither or only one of {x[0]} input and "
                             f"{self.out_channels} output channels; choose groups that divide both")
        return (self.out_channels, *_windows_out(self, x, self.windows(), False))

    def relation(self, axis: str, x: Shape) -> Relation:
        if axis == "n":
            return Same()
        if axis == "c":
            return Full() if self.groups == 1 else Groups(self.groups, self.out_channels // self.groups, x[0] // self.groups)
        return self.windows()["hw".index(axis)]

    def weight_shape(self, x: Shape) -> Shape:
        return (self.out_channels, x[0] // self.groups, *self.kernel)

    def bias_shape(self, x: Shape) -> Shape:
        return (self.out_channels,) if self.bias else ()

    def forward_flops(self, x: Shape) -> float:
        _, oh, ow = self.output_shape(x)
        return 2.0 * oh * ow * math.prod(self.weight_shape(x))

    @property
    def has_weights(self) -> bool:
        return True


@dataclass(frozen=True)
class Linear(Layer):
    """Fully connected layer on features."""

    out_features: int = 1
    bias: bool = True
    kind: ClassVar[str] = "linear"

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 1:
            raise InputError(f"layer '{self.name}' (linear) needs features, but its input has shape {x}; put a flatten before it")
        return (self.out_features,)

    def relation(self, axis: str, x: Shape) -> Relation:
        return Same() if axis == "n" else Full()

    def weight_shape(self, x: Shape) -> Shape:
        return (self.out_features, x[0])

    def bias_shape(self, x: Shape) -> Shape:
        return (self.out_features,) if self.bias else ()

    def forward_flops(self, x: Shape) -> float:
        return 2.0 * math.prod(self.weight_shape(x))

    @property
    def has_weights(self) -> bool:
        return True


@dataclass(frozen=True)
class ReLU(Layer):
    """max(x, 0)."""

    kind: ClassVar[str] = "relu"
    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Pool2d(Layer):
    """What maximum and average pooling share."""

    kernel: Pair = (2, 2)
    stride: Pair = (2, 2)
    padding: Pair = (0, 0)
    ceil_mode: bool = False

    def windows(self) -> tuple[Window, ...]:
        return tuple(Window(*a) for a in zip(self.kernel, self.stride, self.padding, strict=True))

    def output_shape(self, x: Shape) -> Shape:
        _image(self, x)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise InputError(f"layer '{self.name}': padding {self.padding} exceeds half the pooling window {self.kernel}")
        return (x[0], *_windows_out(self, x, self.windows(), self.ceil_mode))

    def relation(self, axis: str, x: Shape) -> Relation:
        return Same() if axis in "nc" else self.windows()["hw".index(axis)]

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(self.output_shape(x)) * math.prod(self.kernel))


@dataclass(frozen=True)
class MaxPool2d(Pool2d):
    """Maximum pooling; padding never wins."""

    kind: ClassVar[str] = "maxpool2d"


@dataclass(frozen=True)
class AvgPool2d(Pool2d):
    """Average pooling; `count_include_pad` as in PyTorch."""

    count_include_pad: bool = True
    kind: ClassVar[str] = "avgpool2d"


@dataclass(frozen=True)
class LRN(Layer):
    """Local response normalisation across channels: x / (k + alpha / size * sum of squares) ** beta."""

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    kind: ClassVar[str] = "lrn"

    def window(self) -> Window:
        """The channels a channel is normalised by: size // 2 before it, (size - 1) // 2 after it."""
        return Window(self.size, 1, self.size // 2)

    def relation(self, axis: str, x: Shape) -> Relation:
        return self.window() if axis == "c" else Same()

    def forward_flops(self, x: Shape) -> float:
        return float(math.prod(x) * (2 * self.size + 3))


@dataclass(frozen=True)
class Dropout(Layer):
    """Zero with probability `rate`, scale the rest; the mask depends on the global index only."""

    rate: float = 0.5
    kind: ClassVar[str] = "dropout"
    elementwise: ClassVar[bool] = True


@dataclass(frozen=True)
class Flatten(Layer):
    """Images to features, channel by channel."""

    kind: ClassVar[str] = "flatten"

    def output_shape(self, x: Shape) -> Shape:
        return (math.prod(x),)

    def relation(self, axis: str, x: Shape) -> Relation:
        if axis == "n":
            return Same()
        return Granule(self.granule(x)) if axis == "c" else Full()

    def granule(self, x: Shape) -> int:
        return math.prod(x[1:])

    def forward_flops(self, x: Shape) -> float:
        return 0.0


@dataclass(frozen=True)
class Loss(Layer):
    """The last layer: its output is its gradient seed; the loss itself is a sum over its elements."""

    def output_shape(self, x: Shape) -> Shape:
        if len(x) != 1:
            raise InputError(f"layer '{self.name}' ({self.kind}) needs features, but its input has shape {x}; put a flatten before it")
        return x


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over the batch of -log softmax at the label; every class is needed at once."""

    kind: ClassVar[str] = "softmax_cross_entropy"

    def relation(self, axis: str, x: Shape) -> Relation:
        return Same() if axis == "n" else Full()


@dataclass(frozen=True)
class LogisticCrossEntropy(Loss):
    """OWT's independent logistic units: mean over the batch of the sum of binary cross-entropies.

    Needs no normalisation across classes, so it can stay split by class.
    """

    kind: ClassVar[str] = "logistic_cross_entropy"
