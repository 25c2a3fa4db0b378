"""The built-in networks at a fraction of their width and depth, on small images of uneven sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hpcpar.network import cosmoflow, inception, resnet, unet, vgg
from hpcpar.network.builder import Chain, Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    AvgPool1d,
    BatchNorm,
    Concat,
    Conv1d,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LogisticCrossEntropy,
    MaxPool1d,
    MaxPool2d,
    Pad,
    Pair,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.network.small import lenet5


def narrow(network: Network, factor: int) -> Network:
    """The same layers with so many times fewer filters and features; the last layer keeps its
    outputs.
    """
    net = Graph(f"small-{network.name}", network.image_shape)
    for layer in network.layers[1:]:
        options: dict[str, Any] = {f.name: getattr(layer, f.name) for f in fields(layer)
                                   if f.name not in ("name", "inputs", "channels")}
        for width in ("out_channels", "out_features"):
            if width in options and layer is not network.matmul_layers[-1]:
                options[width] = max(1, options[width] // factor)
        net.add(type(layer), layer.name, after=layer.inputs, **options)
    return net.build()


def alexnet(groups: int, filters: tuple[int, ...], loss: type[Layer]) -> Network:
    """The layers of `hpcpar.network.builtin.alexnet` on 67 x 67 images, narrow."""
    net = Chain("small-alexnet", (3, 67, 67))
    kernels: list[tuple[Pair, Pair, Pair, int]] = [
        ((11, 11), (4, 4), (0, 0), 1), ((5, 5), (1, 1), (2, 2), groups),
        ((3, 3), (1, 1), (1, 1), 1),
        ((3, 3), (1, 1), (1, 1), groups), ((3, 3), (1, 1), (1, 1), groups),
    ]
    for i, ((kernel, stride, padding, g), out) in enumerate(zip(kernels, filters, strict=True), 1):
        net.add(Conv2d, f"conv{i}", out_channels=out, kernel=kernel, stride=stride, padding=padding,
                groups=g).add(ReLU, f"relu{i}")
        if i <= 2:
            net.add(LRN, f"norm{i}", alpha=0.1)
        if i in (1, 2):
            net.add(MaxPool2d, f"pool{i}", kernel=(3, 3), stride=(2, 2))
    # 67 pixels leave 3 x 3 here: the last pooling sees them all
    net.add(MaxPool2d, "pool5", kernel=(3, 3), stride=(2, 2)).add(Flatten, "flatten")
    for i in (6, 7):
        net.add(Linear, f"fc{i}", out_features=64).add(ReLU, f"relu{i}").add(Dropout, f"drop{i}")
    return net.add(Linear, "fc8", out_features=10).add(loss, "loss").build()


def small_resnet() -> Network:
    """Four bottleneck blocks in three stages: projected with and without stride, and one with the
    identity.
    """
    return narrow(resnet._resnet("resnet", (3, 35, 30), 10, (1, 2, 1)), 8)


def small_inception() -> Network:
    """A stem and the blocks A (average pooling in a branch), B (strides), C (1x7 and 7x1) and E
    (branches that end in two).
    """
    net = Graph("inception", (3, 29, 24))
    inception._conv(net, "conv1", (32, (3, 3), 2, False))
    inception._block_a(net, "a", 32)
    inception._block_b(net, "b")
    inception._block_c(net, "c", 128)
    inception._block_e(net, "e")
    net.add(GlobalAvgPool, "pool")
    net.add(Dropout, "drop")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return narrow(net.build(), 16)


def signals() -> Network:
    """Windows over signals, normalised, and features of both kinds."""
    net = Graph("signals", (3, 41))
    net.add(Conv1d, "conv1", out_channels=6, kernel=5, stride=2, padding=1, bias=False)
    net.add(BatchNorm, "bn1")
    net.add(ReLU, "relu1")
    net.add(MaxPool1d, "pool1", kernel=3, stride=2, padding=1)
    net.add(Pad, "pad", begin=(2,), end=(1,), mode="periodic")
    net.add(Conv1d, "conv2", out_channels=4, kernel=4, dilation=2, groups=2)
    x = net.add(ReLU, "relu2")
    net.add(AvgPool1d, "pool2", kernel=2)
    flat, mean = net.add(Flatten, "flat"), net.add(GlobalAvgPool, "mean", after=x)
    net.add(Concat, "features", after=(flat, mean))
    net.add(Linear, "fc", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


#: name -> (builder, batch)
SMALL: dict[str, tuple[Callable[[], Network], int]] = {
    "lenet5": (lambda: lenet5((1, 12, 11), 10), 7),
    "alexnet-two-towers": (lambda: alexnet(2, (12, 32, 48, 48, 32), SoftmaxCrossEntropy), 6),
    "alexnet-one-tower": (lambda: alexnet(1, (8, 24, 48, 48, 32), LogisticCrossEntropy), 5),
    "vgg": (lambda: narrow(vgg.vgg16((3, 38, 33), 10), 16), 4),
    "resnet": (small_resnet, 6),
    "inception": (small_inception, 5),
    "unet": (lambda: narrow(unet.unet((2, 19, 14), 3), 16), 4),
    "unet3d": (lambda: narrow(unet.unet3d((1, 9, 8, 10), 3), 16), 3),
    "signals": (signals, 5),
    "cosmoflow": (lambda: narrow(cosmoflow.cosmoflow((2, 18, 17, 16), 3), 8), 5),
}
