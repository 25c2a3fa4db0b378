"""AlexNet with two towers (Krizhevsky et al. 2012) and with one (Krizhevsky 2014)."""

from __future__ import annotations

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    Pair,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def towers(name: str, shape: Shape, classes: int, filters: tuple[int, ...], groups: int,
           loss: type[Layer]) -> Network:
    """AlexNet with the given filters per convolution.

    The `groups` towers exchange channels only in the third convolution and the linear layers.
    """
    net = Graph(name, shape)
    kernels: list[tuple[Pair, Pair, Pair, int]] = [
        ((11, 11), (4, 4), (0, 0) if shape[-1] % 4 == 3 else (2, 2), 1),
        ((5, 5), (1, 1), (2, 2), groups),
        ((3, 3), (1, 1), (1, 1), 1),
        ((3, 3), (1, 1), (1, 1), groups),
        ((3, 3), (1, 1), (1, 1), groups),
    ]
    for i, ((kernel, stride, padding, g), out) in enumerate(zip(kernels, filters, strict=True), 1):
        net.add(Conv2d, f"conv{i}", out_channels=out, kernel=kernel, stride=stride, padding=padding,
                groups=g)
        net.add(ReLU, f"relu{i}")
        if i <= 2:
            net.add(LRN, f"norm{i}")
        if i in (1, 2, 5):
            net.add(MaxPool2d, f"pool{i}", kernel=(3, 3), stride=(2, 2))
    net.add(Flatten, "flatten")
    for i in (6, 7):
        net.add(Linear, f"fc{i}", out_features=4096)
        net.add(ReLU, f"relu{i}")
        net.add(Dropout, f"drop{i}")
    net.add(Linear, "fc8", out_features=classes)
    net.add(loss, "loss")
    return net.build()


def alexnet(shape: Shape, classes: int) -> Network:
    """AlexNet as published, with two towers: 60,965,224 parameters at 1000 classes."""
    return towers("alexnet", shape, classes, (96, 256, 384, 384, 256), 2, SoftmaxCrossEntropy)


def alexnet_owt(shape: Shape, classes: int) -> Network:
    """The one-tower AlexNet of One Weird Trick, with logistic outputs."""
    return towers("alexnet-owt", shape, classes, (64, 192, 384, 384, 256), 1, LogisticCrossEntropy)
