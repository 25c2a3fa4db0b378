"""Parts that several networks of the gallery have."""

from __future__ import annotations

from collections.abc import Iterable

from hpcpar.network.builder import Graph
from hpcpar.network.builtin.resnet import conv_norm
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    Concat,
    Flatten,
    GlobalAvgPool,
    Linear,
    ReLU,
    SoftmaxCrossEntropy,
)

CLASSES = 1000


def conv_relu(net: Graph, name: str, filters: int, kernel: int, stride: int = 1,
              after: str | None = None) -> str:
    """Convolution without bias, batch normalization, ReLU."""
    conv_norm(net, name, filters, kernel, stride, after)
    return net.add(ReLU, f"{name}.relu")


def classifier(net: Graph, classes: int = CLASSES) -> Network:
    """Global pooling and one linear layer."""
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=classes)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def flat(net: Graph, name: str, parts: Iterable[str]) -> None:
    """All values of some layers side by side, as heads of detectors give them to the loss."""
    flats = [net.add(Flatten, f"{part}.flat", after=part) for part in parts]
    net.add(Concat, name, after=flats)
