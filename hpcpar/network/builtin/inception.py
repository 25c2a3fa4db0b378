"""Inception-v3 (Szegedy et al. 2016) without its auxiliary classifier."""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    AvgPool2d,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    Pair,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)

#: One convolution: filters, kernel, stride (default 1), and whether padding keeps the image size
#: (default True).
Step = tuple[int, Pair] | tuple[int, Pair, int, bool]

WIDE, TALL, POINT, SQUARE = (1, 7), (7, 1), (1, 1), (3, 3)


def _conv(net: Graph, name: str, step: Step, after: str | None = None) -> str:
    """Convolution without bias, batch normalization, ReLU."""
    filters, kernel, stride, same_size = step if len(step) == 4 else (*step, 1, True)
    padding = tuple(k // 2 if same_size else 0 for k in kernel)
    net.add(Conv2d, name, after=after, out_channels=filters, kernel=kernel, stride=stride,
            padding=padding, bias=False)
    net.add(BatchNorm, f"{name}.bn", eps=0.001)
    return net.add(ReLU, f"{name}.relu")


def _branch(net: Graph, name: str, x: str, *steps: Step) -> str:
    """A sequence of convolutions; returns the name of the last layer."""
    for i, step in enumerate(steps, 1):
        x = _conv(net, f"{name}.{i}", step, x)
    return x


def _pooled(net: Graph, name: str, x: str, filters: int) -> str:
    """3x3 average pooling at stride 1, then a 1x1 convolution."""
    pool = net.add(AvgPool2d, name, after=x, kernel=3, stride=1, padding=1)
    return _conv(net, f"{name}.1", (filters, POINT), pool)


def _halve(net: Graph, name: str, x: str) -> str:
    return net.add(MaxPool2d, name, after=x, kernel=3, stride=2)


def _block_a(net: Graph, name: str, pooled: int) -> None:
    """35 x 35: 1x1, 5x5, two 3x3, pooling."""
    x = net.last
    net.add(Concat, name, after=(
        _branch(net, f"{name}.a", x, (64, POINT)),
        _branch(net, f"{name}.b", x, (48, POINT), (64, (5, 5))),
        _branch(net, f"{name}.c", x, (64, POINT), (96, SQUARE), (96, SQUARE)),
        _pooled(net, f"{name}.pool", x, pooled),
    ))


def _block_b(net: Graph, name: str) -> None:
    """35 x 35 to 17 x 17."""
    x = net.last
    net.add(Concat, name, after=(
        _branch(net, f"{name}.a", x, (384, SQUARE, 2, False)),
        _branch(net, f"{name}.b", x, (64, POINT), (96, SQUARE), (96, SQUARE, 2, False)),
        _halve(net, f"{name}.pool", x),
    ))


def _block_c(net: Graph, name: str, n: int) -> None:
    """17 x 17: 7x7 convolutions factored into 1x7 and 7x1."""
    x = net.last
    net.add(Concat, name, after=(
        _branch(net, f"{name}.a", x, (192, POINT)),
        _branch(net, f"{name}.b", x, (n, POINT), (n, WIDE), (192, TALL)),
        _branch(net, f"{name}.c", x, (n, POINT), (n, TALL), (n, WIDE), (n, TALL), (192, WIDE)),
        _pooled(net, f"{name}.pool", x, 192),
    ))


def _block_d(net: Graph, name: str) -> None:
    """17 x 17 to 8 x 8."""
    x = net.last
    net.add(Concat, name, after=(
        _branch(net, f"{name}.a", x, (192, POINT), (320, SQUARE, 2, False)),
        _branch(net, f"{name}.b", x,
                (192, POINT), (192, WIDE), (192, TALL), (192, SQUARE, 2, False)),
        _halve(net, f"{name}.pool", x),
    ))


def _block_e(net: Graph, name: str) -> None:
    """8 x 8: two branches end in parallel 1x3 and 3x1 convolutions.

    One concatenation replaces the paper's nested ones, in the same channel order.
    """
    x = net.last
    single = _branch(net, f"{name}.a", x, (320, POINT))
    short = _branch(net, f"{name}.b", x, (384, POINT))
    short_ends = [_conv(net, f"{name}.b.{k[0]}x{k[1]}", (384, k), short) for k in ((1, 3), (3, 1))]
    deep = _branch(net, f"{name}.c", x, (448, POINT), (384, SQUARE))
    deep_ends = [_conv(net, f"{name}.c.{k[0]}x{k[1]}", (384, k), deep) for k in ((1, 3), (3, 1))]
    net.add(Concat, name,
            after=(single, *short_ends, *deep_ends, _pooled(net, f"{name}.pool", x, 192)))


def inception_v3(shape: Shape, classes: int) -> Network:
    """Inception-v3: 23,834,568 parameters at 1000 classes; images of at least 75 x 75."""
    net = Graph("inception_v3", shape)
    _conv(net, "conv1", (32, SQUARE, 2, False))
    _conv(net, "conv2", (32, SQUARE, 1, False))
    _conv(net, "conv3", (64, SQUARE))
    _halve(net, "pool1", net.last)
    _conv(net, "conv4", (80, POINT))
    _conv(net, "conv5", (192, SQUARE, 1, False))
    _halve(net, "pool2", net.last)
    for i, pooled in enumerate((32, 64, 64), 1):
        _block_a(net, f"a{i}", pooled)
    _block_b(net, "b")
    for i, filters in enumerate((128, 160, 160, 192), 1):
        _block_c(net, f"c{i}", filters)
    _block_d(net, "d")
    for i in (1, 2):
        _block_e(net, f"e{i}")
    net.add(GlobalAvgPool, "pool")
    net.add(Dropout, "drop")
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
