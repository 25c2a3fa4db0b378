"""Small networks for images of digits."""

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
    """A variant of LeNet-5 (LeCun 1998) with padded convolutions, ReLU and maximum pooling.

    The padding admits 8 x 8 digits as well as the classic 28 x 28.
    """
    net = Chain("lenet5", shape)
    for i, filters in (1, 6), (2, 16):
        net.add(Conv2d, f"conv{i}", out_channels=filters, kernel=(5, 5), padding=(2, 2))
        net.add(ReLU, f"relu{i}").add(MaxPool2d, f"pool{i}")
    net.add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=120).add(ReLU, "relu3")
    net.add(Linear, "fc2", out_features=84).add(ReLU, "relu4")
    return net.add(Linear, "fc3", out_features=classes).add(SoftmaxCrossEntropy, "loss").build()


def mlp(shape: Shape, classes: int) -> Network:
    """Multilayer perceptron with hidden layers of 256 and 128 features."""
    net = Chain("mlp", shape).add(Flatten, "flatten")
    net.add(Linear, "fc1", out_features=256).add(ReLU, "relu1")
    net.add(Linear, "fc2", out_features=128).add(ReLU, "relu2")
    return net.add(Linear, "fc3", out_features=classes).add(SoftmaxCrossEntropy, "loss").build()
