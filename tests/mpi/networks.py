"""The networks of the tests by name, small built-in ones and random ones, and random data for them.
"""

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
    MeanSquaredError,
    Pair,
    ReLU,
    SoftmaxCrossEntropy,
)
from tests.mpi.graphs import Maker
from tests.mpi.unets import random_unet
from tests.mpi.zoo import SMALL

#: Small built-in networks: chains, and those with branches, normalization or volumes.
FIXED = ("lenet5", "alexnet-two-towers", "alexnet-one-tower")
MORE = ("vgg", "resnet", "inception", "mobilenet", "cosmoflow", "norms", "norms of volumes", "unet",
        "unet3d", "signals", "own", "moves", "globe", "cosmos", "channelwise", "dice", "frozen",
        "groups")

#: Seeds of graphs below 1000 that rounding of the data moves by more than 3e-12 in five steps (of
#: SGD or Adam): by a ReLU's or a maximum's tie, a sum that is nearly zero, a normalization of
#: values that are nearly alike. ``python -m tests.mpi.noisy_graphs`` prints them.
NOISY = frozenset((15, 201, 222, 248, 349, 385, 530, 592, 638, 659, 760, 778, 791, 938, 940, 963))


def fixed(name: str) -> tuple[Network, int]:
    """A network of `FIXED` or `MORE`, and its batch."""
    build, batch = SMALL[name]
    return build(), batch


def by_name(name: str) -> tuple[Network, int]:
    """A network and its batch: one of `FIXED` and `MORE`, ``random-SEED`` (a chain),
    ``graph-SEED`` or ``unet-SEED``.
    """
    kind, _, seed = name.partition("-")
    if name in SMALL:
        return fixed(name)
    random = {"graph": random_graph, "unet": random_unet, "random": random_network}
    return random[kind](int(seed))


def rate(network: Network) -> float:
    """A learning rate at which training does not blow up: squared errors are unbounded."""
    return 0.002 if isinstance(network.layers[-1], MeanSquaredError) else 0.05


def sample(network: Network, batch: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random images [N, C, ...], and labels [N, ...] or, where the loss is a mean squared error,
    targets [N, outputs, ...].
    """
    images = rng.standard_normal((batch, *network.image_shape))
    if isinstance(network.layers[-1], MeanSquaredError):
        return images, rng.standard_normal((batch, *network.truth_shape))
    return images, rng.integers(0, network.classes, (batch, *network.truth_shape))


def _pair(rng: np.random.Generator, low: int, high: int) -> Pair:
    """Two numbers of low..high, inclusive."""
    a, b = rng.integers(low, high + 1, 2)
    return int(a), int(b)


def _convolution(rng: np.random.Generator, channels: int) -> dict[str, Any]:
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    return {
        "out_channels": groups * int(rng.integers(1, 4)), "kernel": _pair(rng, 1, 4),
        "stride": _pair(rng, 1, 3),
        "padding": _pair(rng, 0, 2), "dilation": _pair(rng, 1, 2), "groups": groups,
        "bias": bool(rng.random() < 0.7),
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
    channels, height, width = int(rng.integers(1, 5)), int(rng.integers(3, 14)), int(
        rng.integers(3, 11))
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
    return net.add(SoftmaxCrossEntropy if rng.random() < 0.5 else LogisticCrossEntropy,
                   "loss").build()


def random_network(seed: int) -> tuple[Network, int]:
    """A random network and its batch, the same on every rank: what does not fit is drawn again."""
    rng = np.random.default_rng(seed)
    while True:
        batch = int(rng.integers(1, 10))
        try:
            return _attempt(rng, f"random-{seed}"), batch
        except InputError:
            continue


def random_graph(seed: int) -> tuple[Network, int]:
    """A random graph and its batch, the same on every rank: what does not fit is drawn again."""
    rng = np.random.default_rng([seed, 1])
    while True:
        maker = Maker(rng, f"graph-{seed}")
        try:
            return maker.draw(), maker.batch
        except InputError:
            continue


def graph_seeds(first: int, count: int) -> list[int]:
    """Seeds of `random_graph` from `first` on (all below 1000), without those that cannot be
    compared to many digits.
    """
    return [seed for seed in range(first, 1000) if seed not in NOISY][:count]


def describe(network: Network) -> str:
    """One line per layer, for the message of a failure."""
    return "\n".join(f"{layer!r} -> {network.shapes[layer.name]}" for layer in network.layers)
