"""A small network for whole jobs, as a user writes one: ``--network tests.jobs.networks:residual``.
"""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


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
    """Two residual blocks with batch normalisation and a small classifier."""
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
