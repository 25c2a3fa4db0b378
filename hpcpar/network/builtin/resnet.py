"""Residual networks of bottleneck blocks (He et al. 2016), with strides in the 3x3 (v1.5)."""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    BatchNorm,
    Conv2d,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)

#: Ratio of a block's output channels to the channels of its 3x3 convolution.
EXPANSION = 4


def conv_norm(net: Graph, name: str, filters: int, kernel: int, stride: int = 1,
              after: str | None = None, groups: int = 1) -> str:
    """Convolution without bias, padded to keep the image size at stride 1, then BatchNorm."""
    net.add(Conv2d, name, after=after, out_channels=filters, kernel=kernel, stride=stride,
            padding=kernel // 2, groups=groups, bias=False)
    return net.add(BatchNorm, f"{name}.bn")


def _bottleneck(net: Graph, name: str, width: int, stride: int) -> None:
    """1x1, 3x3 and 1x1 convolutions and a shortcut, projected if the shape changes."""
    x = shortcut = net.last
    if stride > 1 or net.shapes[x][0] != EXPANSION * width:
        shortcut = conv_norm(net, f"{name}.down", EXPANSION * width, 1, stride)
    conv_norm(net, f"{name}.conv1", width, 1, after=x)
    net.add(ReLU, f"{name}.relu1")
    conv_norm(net, f"{name}.conv2", width, 3, stride)
    net.add(ReLU, f"{name}.relu2")
    y = conv_norm(net, f"{name}.conv3", EXPANSION * width, 1)
    net.add(Add, f"{name}.add", after=(y, shortcut))
    net.add(ReLU, f"{name}.relu3")


def _resnet(name: str, shape: Shape, classes: int, blocks: tuple[int, ...]) -> Network:
    net = Graph(name, shape)
    conv_norm(net, "conv1", 64, 7, 2)
    net.add(ReLU, "relu1")
    net.add(MaxPool2d, "pool1", kernel=3, stride=2, padding=1)
    for stage, depth in enumerate(blocks, 1):
        for i in range(depth):
            _bottleneck(net, f"stage{stage}.{i}", 32 << stage, 2 if stage > 1 and i == 0 else 1)
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def resnet50(shape: Shape, classes: int) -> Network:
    """ResNet-50: blocks (3, 4, 6, 3), 25,557,032 parameters at 1000 classes."""
    return _resnet("resnet50", shape, classes, (3, 4, 6, 3))


def resnet152(shape: Shape, classes: int) -> Network:
    """ResNet-152: blocks (3, 8, 36, 3), 60,192,808 parameters at 1000 classes."""
    return _resnet("resnet152", shape, classes, (3, 8, 36, 3))
