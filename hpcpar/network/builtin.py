"""The built-in networks by name."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.errors import InputError, unknown
from hpcpar.network.builder import Chain
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


def lenet5(shape: Shape, classes: int) -> Network:
    """LeNet-5-like: two 5x5 convolutions of 6 and 16 filters, pooling, 120 and 84 features (LeCun 1998).

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


def _alexnet(name: str, shape: Shape, classes: int, filters: tuple[int, ...], groups: int, loss: type[Layer]) -> Network:
    net = Chain(name, shape)
    kernels: list[tuple[Pair, Pair, Pair, int]] = [
        ((11, 11), (4, 4), (0, 0) if shape[-1] % 4 == 3 else (2, 2), 1),
        ((5, 5), (1, 1), (2, 2), groups),
        ((3, 3), (1, 1), (1, 1), 1),
        ((3, 3), (1, 1), (1, 1), groups),
        ((3, 3), (1, 1), (1, 1), groups),
    ]
    for i, ((kernel, stride, padding, g), out) in enumerate(zip(kernels, filters, strict=True), 1):
        net.add(Conv2d, f"conv{i}", out_channels=out, kernel=kernel, stride=stride, padding=padding, groups=g).add(ReLU, f"relu{i}")
        if i <= 2:
            net.add(LRN, f"norm{i}")
        if i in (1, 2, 5):
            net.add(MaxPool2d, f"pool{i}", kernel=(3, 3), stride=(2, 2))
    net.add(Flatten, "flatten")
    for i in (6, 7):
        net.add(Linear, f"fc{i}", out_features=4096).add(ReLU, f"relu{i}").add(Dropout, f"drop{i}")
    return net.add(Linear, "fc8", out_features=classes).add(loss, "loss").build()


def alexnet(shape: Shape, classes: int) -> Network:
    """AlexNet as published: two towers (grouped convolutions), 60,965,224 parameters at 1000 classes."""
    return _alexnet("alexnet", shape, classes, (96, 256, 384, 384, 256), 2, SoftmaxCrossEntropy)


def alexnet_owt(shape: Shape, classes: int) -> Network:
    """The one-tower AlexNet of One Weird Trick: 64, 192, 384, 384, 256 filters and logistic outputs."""
    return _alexnet("alexnet-owt", shape, classes, (64, 192, 384, 384, 256), 1, LogisticCrossEntropy)


#: name -> (builder, default image shape, default classes)
NETWORKS: dict[str, tuple[Callable[[Shape, int], Network], Shape, int]] = {
    "lenet5": (lenet5, (1, 28, 28), 10),
    "mlp": (mlp, (1, 28, 28), 10),
    "alexnet": (alexnet, (3, 227, 227), 1000),
    "alexnet-owt": (alexnet_owt, (3, 224, 224), 1000),
}


def network(name: str, shape: Shape | None = None, classes: int | None = None) -> Network:
    """A built-in network.

    Parameters
    ----------
    name : str
        One of `NETWORKS`.
    shape : tuple of int, optional
        Image shape C x H x W; the network's usual one by default.
    classes : int, optional
        Number of outputs; the network's usual one by default.

    Raises
    ------
    InputError
        Unknown name, or images too small for the network.
    """
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    build, usual_shape, usual_classes = NETWORKS[name]
    shape = usual_shape if shape is None else shape
    classes = usual_classes if classes is None else classes
    if len(shape) != 3 or min(shape) < 1 or classes < 1:
        raise InputError(f"network '{name}': input {shape} with {classes} classes; give --input CxHxW and --classes as positive numbers")
    return build(shape, classes)
