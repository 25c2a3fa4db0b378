"""The built-in networks at a fraction of their width and depth, on small images of uneven sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from typing import Any

from hpcpar.network.builder import Chain, Graph
from hpcpar.network.builtin import cosmoflow, inception, mobilenet, resnet, unet, unet3d, vgg
from hpcpar.network.builtin.small import lenet5, mlp
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    ELU,
    GELU,
    LRN,
    AdaptiveAvgPool,
    Add,
    Affine,
    AvgPool1d,
    BatchNorm,
    ChannelNorm,
    Concat,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    DiceCrossEntropy,
    Dropout,
    Expand,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogisticCrossEntropy,
    MaxPool1d,
    MaxPool2d,
    MeanSquaredError,
    Mish,
    Multiply,
    Pad,
    Pair,
    PixelShuffle,
    PixelUnshuffle,
    Pointwise,
    Reduce,
    ReLU,
    Select,
    Sigmoid,
    SiLU,
    SoftmaxCrossEntropy,
    Tanh,
    Unflatten,
    Upsample,
    Whole,
)
from tests.layer_cases import SLOPES
from tests.mpi import skips
from tests.own_layers import Blur, Softplus
from tests.whole_programs import attention


def narrow(network: Network, factor: int, without: Collection[str] = ()) -> Network:
    """The same layers but those in `without`, filters and features divided by `factor`; the last
    layer keeps its outputs. A depthwise convolution stays one.
    """
    net = Graph(f"small-{network.name}", network.image_shape)
    instead: dict[str, str] = {}
    for layer in network.layers[1:]:
        inputs = [instead.get(name, name) for name in layer.inputs]
        if layer.name in without:
            instead[layer.name] = inputs[0]
            continue
        options: dict[str, Any] = {f.name: getattr(layer, f.name) for f in fields(layer)
                                   if f.name not in ("name", "inputs", "channels")}
        for width in ("out_channels", "out_features"):
            if width in options and layer is not network.matmul_layers[-1]:
                options[width] = max(1, options[width] // factor)
        if 1 < options.get("groups", 1) == network.input_shape(layer)[0]:
            options["groups"] = options["out_channels"] = net.shapes[inputs[0]][0]
        net.add(type(layer), layer.name, after=inputs, **options)
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


def small_mobilenet() -> Network:
    """Inverted residuals with and without expansion, stride and shortcut.

    A normalization behind a 1x1 convolution takes back any shift before it, of whose gradient only
    rounding is left: it is left out where one normalization follows another.
    """
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2))
    whole = mobilenet.inverted_residuals("mobilenet", (3, 29, 30), 10, stages)
    again = [layer.name for layer in whole.layers if layer.name.endswith(("expand.bn", "conv2.bn"))]
    return narrow(whole, 4, again)


def gates() -> Network:
    """Squeeze-and-excitation, a product of two images, and activation functions beside ReLU."""
    net = Graph("gates", (3, 15, 14))
    net.add(Conv2d, "stem", out_channels=8, kernel=3, stride=2, padding=1, bias=False)
    net.add(BatchNorm, "stem.bn")
    x = net.add(SiLU, "stem.silu")
    net.add(GlobalAvgPool, "squeeze")
    net.add(Linear, "reduce", out_features=4)
    net.add(GELU, "gelu")
    net.add(Linear, "expand", out_features=8)
    gate = net.add(Sigmoid, "sigmoid")
    y = net.add(Multiply, "excite", after=(x, gate))
    net.add(Conv2d, "side", out_channels=8, kernel=3, padding=1)
    net.add(Tanh, "tanh")
    net.add(Multiply, "product", after=(net.last, y))
    net.add(LeakyReLU, "leaky")
    net.add(Affine, "affine", scale=0.5, shift=-0.1)
    net.add(GlobalMaxPool, "pool")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


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


def norms() -> Network:
    """All normalizations by mean and variance: groups of one channel, of several, of all; with and
    without weights; of images and of features.
    """
    net = Chain("norms", (3, 11, 10))
    kinds: list[tuple[type[Layer], dict[str, Any]]] = [
        (GroupNorm, {"groups": 4}), (GroupNorm, {"groups": 8, "affine": False}), (LayerNorm, {}),
        (BatchNorm, {"affine": False}), (GroupNorm, {"groups": 2, "affine": False})]
    for i, (kind, options) in enumerate(kinds):
        net.add(Conv2d, f"conv{i}", out_channels=8, kernel=3, stride=1 + i % 2, padding=1,
                bias=False)
        net.add(kind, f"norm{i}", **options).add(ReLU, f"relu{i}")
    net.add(Flatten, "flatten").add(LayerNorm, "norm-flat")
    net.add(Linear, "fc", out_features=12, bias=False).add(GroupNorm, "norm-fc", groups=3)
    net.add(Linear, "last", out_features=5)
    return net.add(SoftmaxCrossEntropy, "loss").build()


def norms_of_volumes() -> Network:
    """A residual block of volumes with group and layer normalization."""
    net = Graph("norms-of-volumes", (2, 6, 7, 5))
    net.add(LayerNorm, "first")
    net.add(Conv3d, "stem", out_channels=6, kernel=3, stride=2, padding=1, bias=False)
    x = net.add(GroupNorm, "norm", groups=2)
    net.add(ReLU, "relu")
    net.add(Conv3d, "conv", out_channels=6, kernel=3, padding=1, bias=False)
    y = net.add(GroupNorm, "norm2", groups=3)
    net.add(Add, "sum", after=(y, x))
    net.add(LayerNorm, "norm3", affine=False)
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=3)
    net.add(MeanSquaredError, "loss")
    return net.build()


def signals() -> Network:
    """Windows over signals, normalized, and features of both kinds."""
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


def globe() -> Network:
    """Images that go on at their other end: one axis or both, unevenly, in a chain, as wide as the
    image, before pooling and strides, of a tensor with several readers.
    """
    net = Graph("globe", (2, 9, 11))
    net.add(Pad, "pad1", begin=(0, 2), end=(0, 1), mode="periodic")
    net.add(Conv2d, "conv1", out_channels=4, kernel=(3, 4), padding=(1, 0))
    x = net.add(Tanh, "tanh1")
    net.add(Pad, "pad2", begin=(1, 1), end=(1, 1), mode="periodic")
    y = net.add(Conv2d, "conv2", out_channels=4, kernel=3)
    net.add(Add, "sum", after=(x, y))
    net.add(LeakyReLU, "leaky")
    net.add(Pad, "pad3", begin=(0, 11), end=(9, 3), mode="periodic")
    net.add(MaxPool2d, "pool", kernel=3, stride=2)
    net.add(Pad, "pad4", begin=(2, 0), end=(0, 1), mode="periodic")
    net.add(Pad, "pad5", begin=(1, 3), end=(0, 0), mode="periodic")
    net.add(Conv2d, "conv3", out_channels=6, kernel=3, stride=2)
    net.add(Tanh, "tanh2")
    net.add(Pad, "zeros", begin=(1, 0), end=(0, 2))
    net.add(GlobalAvgPool, "mean")
    net.add(Linear, "fc", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def cosmos() -> Network:
    """A volume that goes on at all of its ends."""
    net = Graph("cosmos", (1, 6, 7, 8))
    for i, (channels, stride) in enumerate(((4, 1), (6, 2))):
        net.add(Pad, f"pad{i}", begin=(1, 1, 1), end=(1, 1 + i, 1), mode="periodic")
        net.add(Conv3d, f"conv{i}", out_channels=channels, kernel=3, stride=stride)
        net.add(LeakyReLU, f"leaky{i}")
    net.add(GlobalAvgPool, "mean")
    net.add(Linear, "fc", out_features=3)
    net.add(MeanSquaredError, "loss")
    return net.build()


def moves() -> Network:
    """Chosen channels and pixels, features as images, channels as pixels, resizing by any factor,
    padding of all kinds.
    """
    net = Graph("moves", (3, 13, 11))
    net.add(Conv2d, "stem", out_channels=6, kernel=3, padding=1)
    x = net.add(Tanh, "tanh")
    net.add(Select, "shuffle", channels=(0, 3, 1, 4, 2, 5))
    net.add(Pad, "reflect", begin=(2, 1), end=(1, 3), mode="reflect")
    net.add(Conv2d, "conv1", out_channels=4, kernel=3)
    net.add(Pad, "edge", begin=(0, 2), end=(3, 1), mode="edge")
    net.add(Select, "crop", begin=(1, 0), step=(2, 1), size=(6, 12))
    first = net.add(Upsample, "larger", size=(9, 7), mode="linear")
    net.add(Select, "half", after=x, channels=(1, 4, 4, 1))
    net.add(Upsample, "smaller", size=(9, 7), mode="linear", align_corners=True)
    second = net.add(LeakyReLU, "leaky")
    net.add(GlobalAvgPool, "pool", after=x)
    net.add(Linear, "fc1", out_features=4)
    third = net.add(Expand, "spread", size=(9, 7))
    net.add(Select, "one", after=second, channels=(2,))
    fourth = net.add(Select, "all", channels=(0,) * 4)
    net.add(Add, "sum", after=(first, second, third, fourth))
    net.add(Pad, "channels", begin=(1, 0), end=(0, 1), value=0.5, channels=(1, 2))
    net.add(PixelUnshuffle, "as channels", block=(2, 1))
    net.add(Tanh, "tanh2")
    net.add(PixelShuffle, "as pixels", block=(1, 2))
    net.add(Upsample, "nearest", size=(14, 5))
    net.add(AdaptiveAvgPool, "windows", size=(5, 3))
    net.add(Flatten, "flat")
    net.add(Linear, "fc2", out_features=24)
    net.add(Unflatten, "image", shape=(4, 3, 2))
    net.add(Conv2d, "conv2", out_channels=5, kernel=1)
    net.add(GlobalAvgPool, "mean")
    net.add(Linear, "fc3", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


#: Formulas of a parameter.
FACTORS, ADDENDS = (("mul", "x0", "w"),), (("add", "x0", "w"),)


def channelwise() -> Network:
    """Trained numbers of each channel or of all, normalization of each pixel, dropout of channels
    and of samples.
    """
    net = Graph("channelwise", (3, 9, 10))
    net.add(Conv2d, "stem", out_channels=8, kernel=3, padding=1)
    net.add(ChannelNorm, "norm1")
    net.add(Pointwise, "slopes1", parameter=(8,), initial=0.25, steps=SLOPES)
    x = net.add(Dropout, "drop1", rate=0.3, unit="channel")
    net.add(Conv2d, "conv1", out_channels=8, kernel=3, padding=1)
    net.add(Pointwise, "slope", parameter=(1,), initial=0.25, steps=SLOPES)
    net.add(Pointwise, "factors1", parameter=(8,), steps=FACTORS)
    y = net.add(Dropout, "drop2", rate=0.4, unit="sample")
    net.add(Add, "sum", after=(x, y))
    net.add(ELU, "elu", alpha=0.7, scale=1.2)
    net.add(Pointwise, "formula", after=(net.last, y), parameter=(8, 9, 10), initial=0.3, steps=(
        ("mul", "x0", "w"), ("softplus", "t0"), ("div", "x1", "t1")))
    x = net.add(Conv2d, "conv2", out_channels=6, kernel=3, stride=2)
    net.add(Reduce, "largest", how="first")
    y = net.add(Select, "to all", channels=(0,) * 6)
    net.add(Reduce, "rows", after=x, axes="w", how="mean")
    z = net.add(Upsample, "along rows", size=(4, 4))
    net.add(Add, "sum2", after=(x, y, z))
    net.add(Whole, "attention", **attention(net.shapes[net.last]))
    net.add(Pointwise, "factors2", parameter=(6,), steps=FACTORS)
    net.add(Pointwise, "addends", parameter=(6,), initial=0.0, steps=ADDENDS)
    net.add(Mish, "mish")
    net.add(ChannelNorm, "norm2", affine=False)
    net.add(Pointwise, "factor", parameter=(1,), steps=FACTORS)
    net.add(Pointwise, "addends2", parameter=(6,), initial=0.0, steps=ADDENDS)
    net.add(Flatten, "flat")
    net.add(Linear, "fc1", out_features=7)
    net.add(Pointwise, "slopes3", parameter=(7,), initial=0.25, steps=SLOPES)
    net.add(ChannelNorm, "norm3")
    net.add(Pointwise, "factor2", parameter=(1,), steps=FACTORS)
    net.add(Pointwise, "addend", parameter=(1,), initial=0.0, steps=ADDENDS)
    net.add(Linear, "fc2", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def frozen() -> Network:
    """Frozen layers before the first trained one, between trained ones, and normalizations."""
    net = Graph("frozen", (3, 15, 14))
    net.add(Conv2d, "stem", out_channels=8, kernel=3, padding=1, weights="frozen")
    x = net.add(BatchNorm, "stem.bn", weights="frozen")
    net.add(ReLU, "relu1")
    net.add(Conv2d, "conv1", out_channels=8, kernel=3, padding=1, bias=False)
    net.add(BatchNorm, "bn1", weights="frozen")
    net.add(Add, "sum", after=(net.last, x))
    net.add(Conv2d, "conv2", out_channels=6, kernel=3, stride=2, weights="frozen")
    net.add(GroupNorm, "norm", groups=2, weights="frozen")
    net.add(ReLU, "relu2")
    net.add(Flatten, "flat")
    net.add(Linear, "fc1", out_features=9, weights="frozen")
    net.add(Linear, "fc2", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def groups() -> Network:
    """Grouped convolutions of uneven widths, beside other readers and one after the other."""
    net = Graph("groups", (2, 9, 8))
    net.add(Conv2d, "stem", out_channels=12, kernel=3, padding=1)
    x = net.add(ReLU, "relu1")
    y = net.add(Conv2d, "two", out_channels=10, kernel=3, padding=1, groups=2)
    net.add(Conv2d, "two again", out_channels=6, groups=2)
    z = net.add(ConvTranspose2d, "three", out_channels=15, kernel=3, padding=1, groups=3,
                after=(x,))
    net.add(Concat, "joined", after=(y, net.add(ReLU, "relu2", after=("two again",)), z))
    net.add(ReLU, "relu3")
    net.add(Conv2d, "few", out_channels=2, groups=1)
    net.add(Conv2d, "narrow", out_channels=2, kernel=3, groups=2)
    net.add(Flatten, "flat")
    net.add(Linear, "fc", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def own() -> Network:
    """Layers from outside the package: pointwise ones, and windows with weights."""
    net = Graph("own", (2, 17, 14))
    net.add(Conv2d, "conv", out_channels=6, kernel=3, padding=1)
    net.add(Softplus, "plus1")
    net.add(Blur, "blur1", kernel=(3, 2), stride=2, padding=1)
    net.add(Softplus, "plus2")
    net.add(Blur, "blur2")
    net.add(Flatten, "flat")
    net.add(Linear, "fc1", out_features=9)
    net.add(Softplus, "plus3")
    net.add(Linear, "fc2", out_features=5)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


def dice() -> Network:
    """An image of classes, its labels smoothed."""
    net = Graph("dice", (2, 11, 9))
    net.add(Conv2d, "conv1", out_channels=6, kernel=3, padding=1)
    net.add(GroupNorm, "norm", groups=3)
    net.add(ReLU, "relu")
    net.add(Conv2d, "conv2", out_channels=4, kernel=3)
    net.add(DiceCrossEntropy, "loss", label_smoothing=0.1)
    return net.build()


#: name -> (builder, batch)
SMALL: dict[str, tuple[Callable[[], Network], int]] = {
    "lenet5": (lambda: lenet5((1, 12, 11), 10), 7),
    "mlp": (lambda: mlp((1, 5, 5), 10), 7),
    "alexnet-two-towers": (lambda: alexnet(2, (12, 32, 48, 48, 32), SoftmaxCrossEntropy), 6),
    "alexnet-one-tower": (lambda: alexnet(1, (8, 24, 48, 48, 32), LogisticCrossEntropy), 5),
    "vgg": (lambda: narrow(vgg.vgg16((3, 38, 33), 10), 16), 4),
    "resnet": (small_resnet, 6),
    "inception": (small_inception, 5),
    "mobilenet": (small_mobilenet, 6),
    "gates": (gates, 6),
    "norms": (norms, 6),
    "norms of volumes": (norms_of_volumes, 5),
    "unet": (lambda: narrow(unet((2, 19, 14), 3), 16), 4),
    "unet3d": (lambda: narrow(unet3d((1, 9, 8, 10), 3), 16), 3),
    "signals": (signals, 5),
    "globe": (globe, 6),
    "cosmos": (cosmos, 5),
    "own": (own, 6),
    "frozen": (frozen, 6),
    "moves": (moves, 5),
    "channelwise": (channelwise, 6),
    "dice": (dice, 5),
    "groups": (groups, 6),
    "skip first": (lambda: skips.skip(True), 6),
    "skip second": (lambda: skips.skip(False), 6),
    "two skips": (skips.two_skips, 6),
    "cosmoflow": (lambda: narrow(cosmoflow((2, 18, 17, 16), 3), 8), 5),
}
