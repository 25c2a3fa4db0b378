"""Small networks for whole jobs, as a user writes them: ``--network tests.jobs.networks:residual``.
"""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    Concat,
    Conv1d,
    Conv2d,
    ConvTranspose2d,
    GlobalAvgPool,
    Linear,
    MaxPool1d,
    MaxPool2d,
    Pad,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
    Whole,
)
from tests import whole_programs


def _block(net: Graph, name: str, filters: int, stride: int) -> None:
    """Two 3x3 convolutions beside a 1x1 convolution."""
    x = net.last
    net.add(Conv2d, f"{name}.conv1", after=x, out_channels=filters, kernel=3, stride=stride,
            padding=1, bias=False)
    net.add(BatchNorm, f"{name}.bn1")
    net.add(ReLU, f"{name}.relu1")
    net.add(Conv2d, f"{name}.conv2", out_channels=filters, kernel=3, padding=1, bias=False)
    y = net.add(BatchNorm, f"{name}.bn2")
    shortcut = net.add(Conv2d, f"{name}.down", after=x, out_channels=filters, kernel=1,
                       stride=stride)
    net.add(Add, f"{name}.add", after=(y, shortcut))
    net.add(ReLU, f"{name}.relu2")


def residual(shape: Shape = (1, 8, 8), classes: int = 10) -> Network:
    """Two residual blocks with batch normalization and a small classifier."""
    net = Graph("residual", shape)
    net.add(Conv2d, "conv1", out_channels=8, kernel=3, padding=1)
    _block(net, "a", 8, 1)
    _block(net, "b", 16, 2)
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc1", out_features=32)
    net.add(ReLU, "relu")
    net.add(Linear, "fc2", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def cells(shape: Shape = (1, 17, 16), classes: int = 3) -> Network:
    """A U-Net of two levels, with columns that meet at their ends."""
    net = Graph("cells", shape)
    net.add(Pad, "pad", begin=(1, 1), end=(1, 1), mode="periodic")
    net.add(Conv2d, "conv1", out_channels=8, kernel=3)
    skip = net.add(ReLU, "relu1")
    net.add(MaxPool2d, "pool", kernel=2, stride=2)
    net.add(Conv2d, "conv2", out_channels=8, kernel=3, padding=1)
    net.add(ReLU, "relu2")
    odd = tuple(extent % 2 for extent in net.shapes[skip][1:])
    up = net.add(ConvTranspose2d, "up", out_channels=8, kernel=2, stride=2, output_padding=odd)
    net.add(Concat, "join", after=(skip, up))
    net.add(Conv2d, "conv3", out_channels=classes, kernel=3, padding=1)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def waves(shape: Shape = (2, 61), classes: int = 3) -> Network:
    """Convolutions of signals."""
    net = Graph("waves", shape)
    for i, width in enumerate((8, 16)):
        net.add(Conv1d, f"conv{i}", out_channels=width, kernel=5, padding=2)
        net.add(ReLU, f"relu{i}")
        net.add(MaxPool1d, f"pool{i}")
    net.add(GlobalAvgPool, "mean")
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def short_waves() -> Network:
    """The same of signals with few columns."""
    return waves((2, 5))


def reduced(shape: Shape = (1, 16, 16), classes: int = 3) -> Network:
    """A class for every other pixel, along both axes."""
    net = Graph("reduced", shape)
    net.add(Conv2d, "conv1", out_channels=8, kernel=3, padding=1)
    net.add(ReLU, "relu")
    net.add(Conv2d, "conv2", out_channels=classes, kernel=1, stride=2)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def attention() -> Network:
    """A part that runs whole, with dropout, between convolutions."""
    net = Graph("attention", (1, 8, 8))
    net.add(Conv2d, "before", out_channels=4, kernel=3, padding=1)
    net.add(Whole, "attention", **whole_programs.attention((4, 8, 8), 0.3))
    net.add(Conv2d, "after", out_channels=4, kernel=3, padding=1)
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
