"""Further networks for planning: deep chains, and graphs that defeat variable elimination."""

from __future__ import annotations

from hpcpar.network.builder import Chain, Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    BatchNorm,
    Concat,
    Conv2d,
    Flatten,
    GlobalAvgPool,
    Linear,
    MaxPool2d,
    ReLU,
    SoftmaxCrossEntropy,
)


def deep(count: int) -> Network:
    """A chain of `count` different convolutions."""
    net = Chain(f"chain{count}", (8, 56, 56))
    for i in range(count):
        net.add(Conv2d, f"conv{i}", out_channels=64 + 4 * i, kernel=(3, 3),
                padding=(1, 1)).add(ReLU, f"relu{i}")
    return (
        net.add(Flatten, "flatten")
        .add(Linear, "fc", out_features=1000)
        .add(SoftmaxCrossEntropy, "loss")
        .build()
    )


def dense(blocks: tuple[int, ...]) -> Network:
    """DenseNet on small images: each layer reads all previous layers of its block."""
    net = Graph("dense", (3, 64, 64))
    x = net.add(Conv2d, "stem", out_channels=64, kernel=(3, 3), padding=(1, 1))
    for block, count in enumerate(blocks):
        features = [x]
        for i in range(count):
            name = f"{block}.{i}"
            whole = net.add(Concat, f"{name}.all", after=tuple(features)) if i else x
            net.add(BatchNorm, f"{name}.norm1", after=whole)
            net.add(ReLU, f"{name}.relu1")
            net.add(Conv2d, f"{name}.conv1", out_channels=128, kernel=(1, 1))
            net.add(BatchNorm, f"{name}.norm2")
            net.add(ReLU, f"{name}.relu2")
            features.append(net.add(Conv2d, f"{name}.conv2", out_channels=32, kernel=(3, 3),
                                    padding=(1, 1)))
        net.add(Concat, f"{block}.all", after=tuple(features))
        net.add(Conv2d, f"{block}.narrow", out_channels=64, kernel=(1, 1))
        x = net.add(MaxPool2d, f"{block}.pool", kernel=(2, 2), stride=(2, 2))
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=1000)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()
