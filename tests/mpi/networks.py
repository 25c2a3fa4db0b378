"""The networks of the tests: random small ones, LeNet-5, and AlexNet at an eighth of its width."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.builder import Chain
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    LRN,
    AvgPool2d,
    Conv2d,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LogisticCrossEntropy,
    MaxPool2d,
    Pair,
    ReLU,
    SoftmaxCrossEntropy,
)
from hpcpar.network.small import lenet5

FIXED = ("lenet5", "alexnet-two-towers", "alexnet-one-tower")


def alexnet(groups: int, filters: tuple[int, ...], loss: type[Layer]) -> Network:
    """The layers of `hpcpar.network.builtin.alexnet` on 67 x 67 images, narrow."""
    net = Chain("small-alexnet", (3, 67, 67))
    kernels: list[tuple[Pair, Pair, Pair, int]] = [
        ((11, 11), (4, 4), (0, 0), 1), ((5, 5), (1, 1), (2, 2), groups), ((3, 3), (1, 1), (1, 1), 1),
        ((3, 3), (1, 1), (1, 1), groups), ((3, 3), (1, 1), (1, 1), groups),
    ]
    for i, ((kernel, stride, padding, g), out) in enumerate(zip(kernels, filters, strict=True), 1):
        net.add(Conv2d, f"conv{i}", out_channels=out, kernel=kernel, stride=stride, padding=padding, groups=g).add(ReLU, f"relu{i}")
        if i <= 2:
            net.add(LRN, f"norm{i}", alpha=0.1)
        if i in (1, 2):
            net.add(MaxPool2d, f"pool{i}", kernel=(3, 3), stride=(2, 2))
    # 67 pixels leave 3 x 3 here: the last pooling sees them all
    net.add(MaxPool2d, "pool5", kernel=(3, 3), stride=(2, 2)).add(Flatten, "flatten")
    for i in (6, 7):
        net.add(Linear, f"fc{i}", out_features=64).add(ReLU, f"relu{i}").add(Dropout, f"drop{i}")
    return net.add(Linear, "fc8", out_features=10).add(loss, "loss").build()


def fixed(name: str) -> tuple[Network, int]:
    """A network of `FIXED` and its batch."""
    if name == "lenet5":
        return lenet5((1, 12, 11), 10), 7
    if name == "alexnet-two-towers":
        return alexnet(2, (12, 32, 48, 48, 32), SoftmaxCrossEntropy), 6
    return alexnet(1, (8, 24, 48, 48, 32), LogisticCrossEntropy), 5


def _pair(rng: np.random.Generator, low: int, high: int) -> Pair:
    """Two numbers of low..high, inclusive."""
    a, b = rng.integers(low, high + 1, 2)
    return int(a), int(b)


def _convolution(rng: np.random.Generator, channels: int) -> dict[str, Any]:
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    return {
        "out_channels": groups * int(rng.integers(1, 4)), "kernel": _pair(rng, 1, 4), "stride": _pair(rng, 1, 3),
        "padding": _pair(rng, 0, 2), "dilation": _pair(rng, 1, 2), "groups": groups, "bias": bool(rng.random() < 0.7),
    }


def _pooling(rng: np.random.Generator) -> tuple[type[Layer], dict[str, Any]]:
    kernel = _pair(rng, 1, 4)
    options: dict[str, Any] = {
        "kernel": kernel, "stride": _pair(rng, 1, 3), "ceil_mode": bool(rng.random() < 0.5),
        "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel),
    }
    if rng.random() < 0.5:
        return MaxPool2d, options
    return AvgPool2d, options | {"count_include_pad": bool(rng.random() < 0.5)}


def _attempt(rng: np.random.Generator, name: str) -> Network:
    channels, height, width = int(rng.integers(1, 5)), int(rng.integers(3, 14)), int(rng.integers(3, 11))
    net = Chain(name, (channels, height, width))
    for i in range(int(rng.integers(1, 4))):
        options = _convolution(rng, channels)
        channels = options["out_channels"]
        net.add(Conv2d, f"conv{i}", **options)
        extra: list[tuple[type[Layer], str, dict[str, Any]]] = []
        if rng.random() < 0.5:
            pool, options = _pooling(rng)
            extra.append((pool, f"pool{i}", options))
        if rng.random() < 0.35:
            extra.append((LRN, f"norm{i}", {"size": int(rng.integers(1, 6)), "alpha": 0.3}))
        if rng.random() < 0.35:
            extra.append((Dropout, f"drop{i}", {"rate": 0.3}))
        if rng.random() < 0.7:
            extra.append((ReLU, f"relu{i}", {}))
        for k in rng.permutation(len(extra)):
            net.add(extra[k][0], extra[k][1], **extra[k][2])
    net.add(Flatten, "flatten")
    if rng.random() < 0.6:
        net.add(Linear, "fc", out_features=int(rng.integers(3, 12)), bias=bool(rng.random() < 0.7))
        for layer, label in ((ReLU, "relu"), (Dropout, "drop")):
            if rng.random() < 0.6:
                net.add(layer, f"{label}-fc")
    net.add(Linear, "last", out_features=int(rng.integers(2, 8)))
    return net.add(SoftmaxCrossEntropy if rng.random() < 0.5 else LogisticCrossEntropy, "loss").build()


def random_network(seed: int) -> tuple[Network, int]:
    """A random network and its batch, the same on every rank: what does not fit is drawn again."""
    rng = np.random.default_rng(seed)
    while True:
        batch = int(rng.integers(1, 10))
        try:
            return _attempt(rng, f"random-{seed}"), batch
        except InputError:
            continue


def describe(network: Network) -> str:
    """One line per layer, for the message of a failure."""
    return "\n".join(f"{layer!r} -> {network.shapes[layer.name]}" for layer in network.layers)
