"""Small networks for digits."""

from __future__ import annotations

from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Shape,
    SoftmaxCrossEntropy,
)


def lenet5(shape: Shape, classes: int) -> Network:
    """LeNet-5-like: two 5x5 convolutions of 6 and 16 filters, pooling, 120 and 84 features (LeCun
    1998).

    Both convolutions are padded, so that 8 x 8 digits pass as well as the classic 28 x 28.
    """
    net = Chain("lenet5", shape)
    net.add(Conv2d, "conv1", out_channels=6, kernel=(5, 5), padding=(2, 2)).add(ReLU, "relu1").add(MaxPool2d, "pool1")
    net.add(Conv2d, "conv2", out_channels=16, kernel=(5, 5), padding=(2, 2)).add(ReLU, "relu2").add(MaxPool2d, "pool2")
    net.add(Flatten, "flatten").add(Linear, "fc1", out_features=120).add(ReLU, "relu3")
    net.add(Linear, "fc2", out_features=84).add(ReLU, "relu4").add(Linear, "fc3", out_features=classes)
    return net.add(SoftmaxCrossEntropy, "loss").build()


def mlp(shape: Shape, classes: int) -> Network:
    """Two hidden layers of 256 and 128 features."""
    net = Chain("mlp", shape).add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=256).add(ReLU, "relu1").add(Linear, "fc2", out_features=128).add(ReLU, "relu2")
    return net.add(Linear, "fc3", out_features=classes).add(SoftmaxCrossEntropy, "loss").build()
