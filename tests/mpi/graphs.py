"""Random graphs: branches that are added or joined, tensors with several readers, normalization,
windows of all shapes, 2D and 3D.

No parameter's gradient is zero by mathematics: the computed gradient would be rounding noise, which
no two orders of summation share (and which Adam makes large). So a normalization stands only where
it undoes nothing before it: a channel's bias (graphs with normalization have none in convolutions)
or its factor.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    GELU,
    LRN,
    Activation,
    Add,
    Affine,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    Clip,
    Concat,
    Conv2d,
    Conv3d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    Layer,
    LeakyReLU,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    Multiply,
    ReLU,
    Sigmoid,
    SiLU,
    SoftmaxCrossEntropy,
    Tanh,
)

LOSSES: tuple[type[Layer], ...] = (SoftmaxCrossEntropy, LogisticCrossEntropy, MeanSquaredError)
#: Activation functions beside ReLU, with options in whose range values fall on all sides.
ACTIVATIONS: tuple[tuple[type[Layer], dict[str, Any]], ...] = (
    (LeakyReLU, {"slope": 0.2}), (Clip, {"low": -0.4, "high": 1.0}), (Sigmoid, {}), (Tanh, {}),
    (SiLU, {}), (GELU, {}), (GELU, {"tanh": True}), (Affine, {"scale": -1.5, "shift": 0.3}))
#: A normalization has at least this many values: of two values it keeps only the sign.
LEAST_VALUES = 4
#: Channels beyond which a concatenation is followed by a 1x1 convolution.
MOST_CHANNELS = 8


def free(layer: Layer, shape: tuple[int, ...], inputs: list[set[str]]) -> set[str]:
    """Changes that parameters can make to each channel of a layer's output independently:
    ``shift`` it, ``scale`` it.

    Parameters
    ----------
    shape : tuple of int
        Of the (first) input.
    inputs : list of set of str
        The same of the inputs.
    """
    out = set().union(*inputs)
    if isinstance(layer, BatchNorm):
        return {"shift", "scale"}
    if isinstance(layer, LRN):
        return set()
    if isinstance(layer, ReLU | LeakyReLU | Dropout | Multiply):
        return out - {"shift"}
    if isinstance(layer, Activation) and not isinstance(layer, Affine):
        return set()
    if isinstance(layer, Conv2d | Conv3d | Linear):
        row = layer.weight_shape(shape)[1:]
        if row[0] > 1:  # other channels' values do not scale along
            out -= {"scale"}
        return out | ({"shift"} if layer.bias else set()) | ({"scale"} if math.prod(row) == 1
                                                             else set())
    return out


class Maker:
    """Draws one graph piece by piece."""

    def __init__(self, rng: np.random.Generator, name: str) -> None:
        self.rng = rng
        # gates and other activations than ReLU, which leave the rest of the graph as it is
        self.more = np.random.default_rng(zlib.crc32(name.encode()))
        self.batch = int(rng.integers(1, 10))
        self.dimensions = 2 if rng.random() < 0.6 else 3
        extents = rng.integers(3, 14 if self.dimensions == 2 else 8, self.dimensions)
        self.net = Graph(name, (int(rng.integers(1, 5)), *map(int, extents)))
        self.free: dict[str, set[str]] = {self.net.last: set()}
        self.normalizes = self.chance(0.6)
        volume = self.dimensions == 3
        self.conv: type[Layer] = Conv3d if volume else Conv2d
        self.most: type[Layer] = MaxPool3d if volume else MaxPool2d
        self.average: type[Layer] = AvgPool3d if volume else AvgPool2d

    # -- drawing -----------------------------------------------------------------------------------
    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, low: int, high: int) -> int:
        """A number of low..high, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def each(self, low: int, high: int) -> tuple[int, ...]:
        """Such a number for every image axis."""
        return tuple(self.one(low, high) for _ in range(self.dimensions))

    def window(self) -> dict[str, Any]:
        """Any window that pooling may have."""
        kernel = self.each(1, 4)
        return {"kernel": kernel, "stride": self.each(1, 3),
                "padding": tuple(self.one(0, k // 2) for k in kernel)}

    def same(self) -> dict[str, Any]:
        """A convolution's window that keeps the image."""
        kernel = tuple(2 * k - 1 for k in self.each(1, 2))
        dilation = tuple(self.one(1, 2) if k > 1 else 1 for k in kernel)
        return {"kernel": kernel, "dilation": dilation,
                "padding": tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))}

    # -- layers ------------------------------------------------------------------------------------
    def add(self, layer: type[Layer], *after: str, **options: Any) -> str:
        """Append a layer after those named, or the last; its name."""
        after = after or (self.net.last,)
        name = self.net.add(layer, f"{layer.kind}{len(self.net.layers)}", after=after, **options)
        self.free[name] = free(self.net.layers[-1], self.net.shapes[after[0]],
                               [self.free[i] for i in after])
        return name

    def channels(self, name: str) -> int:
        return self.net.shapes[name][0]

    def normalized(self, x: str) -> str:
        """`x` normalized, where that undoes nothing."""
        values = self.batch * math.prod(self.net.shapes[x][1:])
        return x if self.free[x] or values < LEAST_VALUES else self.add(BatchNorm, x)

    def unit(self, x: str, options: dict[str, Any], channels: int = 0, relu: bool = True) -> str:
        """Convolution, often normalized, often (after a normalization always) with a ReLU unless
        without `relu`.
        """
        inputs, norm, groups = self.channels(x), self.normalizes and self.chance(0.7), 1
        if not channels:
            groups = int(self.rng.choice([g for g in range(1, inputs + 1) if inputs % g == 0]))
            channels = groups * self.one(1, max(1, 4 // groups))
        y = self.add(self.conv, x, out_channels=channels, groups=groups, bias=not self.normalizes
                     and self.chance(0.7), **options)
        z = self.normalized(y) if norm else y
        return self.activation(z) if relu and (z != y or self.chance(0.7)) else z

    def activation(self, x: str) -> str:
        """A ReLU, or another function."""
        if self.more.random() < 0.6:
            return self.add(ReLU, x)
        layer, options = ACTIVATIONS[self.more.integers(len(ACTIVATIONS))]
        return self.add(layer, x, **options)

    # -- pieces ------------------------------------------------------------------------------------
    def plain(self, x: str) -> str:
        """A convolution of any window, then perhaps pooling, normalization across channels,
        dropout.
        """
        options = {"kernel": self.each(1, 4), "stride": self.each(1, 3), "padding": self.each(0, 2),
                   "dilation": self.each(1, 2)}
        self.unit(x, options)
        if self.chance(0.4):
            self.add(self.most if self.chance(0.5) else self.average, ceil_mode=self.chance(0.5),
                     **self.window())
        if self.chance(0.25):
            self.add(LRN, size=self.one(1, 5), alpha=0.3)
        if self.chance(0.25):
            self.add(Dropout, rate=0.3)
        return self.net.last

    def residual(self, x: str) -> str:
        """Two or three branches of one shape added, one of them the identity or a projection."""
        stride, channels = self.each(1,
                                     2) if self.chance(0.4) else (
                                         1,) * self.dimensions, self.channels(x)
        shortcut = x
        if max(stride) > 1 or self.chance(0.3):
            channels = self.one(1, 5)
            shortcut = self.unit(x, {"kernel": 1, "stride": stride}, channels, relu=False)
        branches = [shortcut]
        for _ in range(self.one(1, 2)):
            y = self.unit(x, self.same() | {"stride": stride})
            branches.append(self.unit(y, self.same(), channels, relu=False))
        return self.activation(self.add(Add, *branches[:: -1 if self.chance(0.5) else 1]))

    def inception(self, x: str) -> str:
        """Branches side by side, joined: all keep the image, or all have the same window."""
        branches = [self._branch(x) for _ in range(self.one(2, 3))]
        if self.chance(0.3):
            branches.insert(self.one(0, len(branches)), x)
        return self.fewer(self.add(Concat, *branches))

    def _branch(self, x: str) -> str:
        if self.chance(0.3):
            kernel = tuple(2 * k - 1 for k in self.each(1, 2))
            options = {"kernel": kernel, "stride": 1, "padding": tuple(k // 2 for k in kernel)}
            x = self.add(self.most if self.chance(0.5) else self.average, x, **options)
            return self.unit(x, {}, self.one(1, 3)) if self.chance(0.5) else x
        for _ in range(self.one(1, 2)):
            x = self.unit(x, self.same())
        return x

    def reduction(self, x: str) -> str:
        """A convolution and poolings of one window, joined."""
        window = self.window()
        branches = [self.unit(x, window, self.one(1, 4)), self.add(self.most, x, **window)]
        if self.chance(0.5):
            branches.append(self.add(self.average, x, **window, count_include_pad=self.chance(0.5)))
        return self.fewer(self.add(Concat, *branches))

    def skip(self, x: str) -> str:
        """Something that keeps the image, and a tensor from further up added to it or joined with
        it.
        """
        y = self.unit(x, self.same())
        shape = self.net.shapes[y]
        earlier = [name for name, s in self.net.shapes.items() if s[1:] == shape[1:] and name != y]
        other = str(self.rng.choice(earlier))
        if self.net.shapes[other] == shape:
            total = self.add(Add, other, y)
            return self.activation(total) if self.chance(0.7) else total
        return self.fewer(self.add(Concat, y, other))

    def fewer(self, x: str) -> str:
        """`x` with fewer channels where they became many."""
        return self.unit(x, {}, self.one(2, 5)) if self.channels(x) > MOST_CHANNELS else x

    def gate(self, x: str) -> str:
        """`x` times a branch of its shape, or times a number for each of its channels."""
        branch = self.more.random() < 0.3
        if branch:
            y = self.add(self.conv, x, out_channels=self.channels(x))
        else:
            self.add(self.pooling(), x)
            y = self.add(Linear, out_features=self.channels(x))
        return self.add(Multiply, x, self.add(Sigmoid, y))

    def pooling(self) -> type[Layer]:
        """Average or maximum of whole images."""
        return GlobalAvgPool if self.more.random() < 0.6 else GlobalMaxPool

    # -- the whole ---------------------------------------------------------------------------------
    def features(self, x: str) -> str:
        """From images to features, one way or both."""
        whole = self.pooling()
        ways = [Flatten, whole] if self.chance(0.25) else [Flatten if self.chance(0.5) else whole]
        made = [self.add(way, x) for way in ways]
        return self.add(Concat, *made) if len(made) > 1 else made[0]

    def hidden(self, x: str) -> str:
        """One or two fully connected layers side by side, with what may follow them."""
        width, norm = self.one(3, 11), self.normalizes and self.chance(0.5)
        made = [self.add(Linear, x, out_features=width, bias=not norm and self.chance(0.7))
                for _ in range(1 + self.chance(0.4))]
        y = self.add(Add if self.chance(0.5) else Concat, *made) if len(made) > 1 else made[0]
        z = self.normalized(y) if norm else y
        if z != y or self.chance(0.7):
            z = self.activation(z)
        return self.add(Dropout, z) if self.chance(0.4) else z

    def draw(self) -> Network:
        pieces: list[Callable[[str], str]] = [self.plain, self.residual, self.inception,
                                              self.reduction, self.skip]
        x = self.net.last
        for i in self.rng.integers(0, len(pieces), self.one(1, 3)):
            x = pieces[i](x)
            if self.more.random() < 0.25:
                x = self.gate(x)
        x = self.features(x)
        if self.chance(0.6):
            x = self.hidden(x)
        self.add(Linear, x, out_features=self.one(2, 7))
        self.add(LOSSES[self.one(0, 2)])
        return self.net.build()
