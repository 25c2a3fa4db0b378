"""MobileNetV2 (Sandler et al. 2018): inverted residuals of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterable

from hpcpar.network.builder import Graph
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Add,
    Clip,
    Dropout,
    GlobalAvgPool,
    Linear,
    Shape,
    SoftmaxCrossEntropy,
)

#: Expansion, output channels, number of blocks, and stride of the first block, for each stage.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
          (6, 160, 3, 2), (6, 320, 1, 1))


def _block(net: Graph, name: str, expansion: int, filters: int, stride: int) -> None:
    """An inverted residual: expand, depthwise filter, project; a shortcut if shapes are equal."""
    x = net.last
    channels = net.shapes[x][0]
    width = expansion * channels
    if expansion > 1:
        conv_norm(net, f"{name}.expand", width, 1)
        net.add(Clip, f"{name}.relu1")
    conv_norm(net, f"{name}.depthwise", width, 3, stride, groups=width)
    net.add(Clip, f"{name}.relu2")
    y = conv_norm(net, f"{name}.project", filters, 1)
    if stride == 1 and filters == channels:
        net.add(Add, f"{name}.add", after=(y, x))


def inverted_residuals(name: str, shape: Shape, classes: int,
                       stages: Iterable[tuple[int, int, int, int]]) -> Network:
    """A network with `stages` (in the form of `STAGES`) between a stem and a 1x1 convolution."""
    net = Graph(name, shape)
    conv_norm(net, "conv1", 32, 3, 2)
    net.add(Clip, "relu1")
    for stage, (expansion, filters, depth, stride) in enumerate(stages, 1):
        for i in range(depth):
            _block(net, f"stage{stage}.{i}", expansion, filters, stride if i == 0 else 1)
    conv_norm(net, "conv2", 1280, 1)
    net.add(Clip, "relu2")
    net.add(GlobalAvgPool, "pool")
    net.add(Dropout, "drop", rate=0.2)
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def mobilenet_v2(shape: Shape, classes: int) -> Network:
    """MobileNetV2 in torchvision's layout: 3,504,872 parameters at 1000 classes."""
    return inverted_residuals("mobilenet_v2", shape, classes, STAGES)
