"""VGG-16, as published and with batch normalization."""

from __future__ import annotations

from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def vgg16(shape: Shape, classes: int) -> Network:
    """VGG-16 (Simonyan and Zisserman 2015, column D).

    It has 138,357,544 parameters with 1000 classes and 224 x 224 images.
    """
    return _vgg16("vgg16", shape, classes, normalized=False)


def vgg16_bn(shape: Shape, classes: int) -> Network:
    """VGG-16 with batch normalization after every convolution, as in torchvision.

    It has 138,365,992 parameters with 1000 classes and 224 x 224 images.
    """
    return _vgg16("vgg16_bn", shape, classes, normalized=True)


def _vgg16(name: str, shape: Shape, classes: int, normalized: bool) -> Network:
    net = Chain(name, shape)
    for stage, (depth, filters) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for i in range(1, depth + 1):
            net.add(Conv2d, f"conv{stage}_{i}", out_channels=filters, kernel=3, padding=1)
            if normalized:
                net.add(BatchNorm, f"bn{stage}_{i}")
            net.add(ReLU, f"relu{stage}_{i}")
        net.add(MaxPool2d, f"pool{stage}")
    net.add(Flatten, "flatten")
    for i in (6, 7):
        net.add(Linear, f"fc{i}", out_features=4096).add(ReLU, f"relu{i}").add(Dropout, f"drop{i}")
    return net.add(Linear, "fc8", out_features=classes).add(SoftmaxCrossEntropy, "loss").build()
