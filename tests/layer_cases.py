"""Every layer of the package, with options: the one list for tests that cover all layers.

A new layer is covered by one entry in `cases`; ``tests/unit/network/test_layer_cases.py`` fails
while it has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import (
    ELU,
    GELU,
    LRN,
    AdaptiveAvgPool,
    Add,
    Affine,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    ChannelNorm,
    Clip,
    Concat,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose2d,
    ConvTranspose3d,
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
    Loss,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    MeanSquaredError,
    Mish,
    Multiply,
    Pad,
    PixelShuffle,
    PixelUnshuffle,
    Pointwise,
    Reduce,
    ReLU,
    Select,
    Shape,
    Sigmoid,
    SiLU,
    SoftmaxCrossEntropy,
    Tanh,
    Unflatten,
    Upsample,
    Whole,
)
from tests.whole_programs import attention

TESTED = "tested"
#: Convolutions of each number of image axes, for the layers before the tested one.
CONVS: dict[int, type[Layer]] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
#: PReLU.
SLOPES = (("greater", "x0", 0.0), ("mul", "x0", "w"), ("where", "t0", "x0", "t1"))
#: Convolutions with every option.
ANY_2D: dict[str, Any] = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}
ANY_3D: dict[str, Any] = {"kernel": (2, 3, 2), "stride": (1, 2, 1), "padding": (1, 1, 0),
                          "dilation": (2, 1, 1)}
#: Overlapping windows at unequal strides.
WINDOW_2D: dict[str, Any] = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0)}
WINDOW_3D: dict[str, Any] = {"kernel": (2, 3, 2), "stride": (1, 2, 1), "padding": (1, 1, 0)}


@dataclass(frozen=True)
class LayerCase:
    """A layer with its options.

    Attributes
    ----------
    parts : int
        Every axis of the layer's input and output can be cut into this number of parts.
    dimensions : int
        Number of image axes of the input; 0 for features.
    inputs : int
        Number of tensors that the layer reads.
    gated : bool
        Whether the layer also reads features of the image's channels.
    features : int
        Number of input features, where the layer reads features.
    """

    parts: int
    layer: type[Layer]
    options: dict[str, Any]
    dimensions: int
    inputs: int
    gated: bool
    features: int

    @property
    def image(self) -> Shape:
        """Extents of the network's images."""
        p = self.parts
        extents = {1: (2 * p + 3,), 3: (p + 2, 2 * p + 3, p + 4)}.get(
            self.dimensions, (2 * p + 3, p + 4))
        blocks = self.options["block"] if self.layer is PixelUnshuffle else (1,) * len(extents)
        return tuple(n * b for n, b in zip(extents, blocks, strict=True))

    def network(self) -> Network:
        """The layer behind layers with weights, and before another one with weights."""
        width = channels(self.parts)
        if self.layer is PixelShuffle:
            width *= math.prod(self.options["block"])
        net = Graph("small", (2, *self.image))
        if self.dimensions:
            # biases that a normalization takes away again have no gradient
            plain = self.layer is not BatchNorm and self.options.get("groups") != width
            read = [net.add(CONVS[self.dimensions], f"before{i}", after=("input",),
                            out_channels=width, kernel=1 + i % 2 * 2, padding=i % 2, bias=plain)
                    for i in range(self.inputs)]
            if self.gated:
                net.add(GlobalAvgPool, "mean")
                read.append(net.add(Linear, "gate", out_features=width))
        else:
            net.add(Flatten, "features")
            read = [net.add(Linear, "before0", out_features=self.features)]
        net.add(self.layer, TESTED, after=read, **self.options)
        if not issubclass(self.layer, Loss):
            if len(net.shapes[TESTED]) > 1:
                net.add(Flatten, "flat")
            net.add(Linear, "after", out_features=3)
            net.add(MeanSquaredError, "loss")
        return net.build()


def channels(parts: int) -> int:
    """Channels of images before a tested layer."""
    return max(4, parts)


def cases(parts: int) -> dict[str, LayerCase]:
    """Every layer with options, all axes long enough for `parts` parts, by name."""
    p, width = parts, channels(parts)
    groups = 2 if width % 2 == 0 else width

    def case(layer: type[Layer], dimensions: int = 2, *, inputs: int = 1, gated: bool = False,
             features: int = width + 1, **options: Any) -> LayerCase:
        return LayerCase(parts, layer, options, dimensions, inputs, gated, features)

    return {
        "conv1d": case(Conv1d, 1, out_channels=width, kernel=4, padding=1),
        "conv2d": case(Conv2d, out_channels=width + 1, **ANY_2D),
        "conv2d in groups": case(Conv2d, out_channels=2 * width, **ANY_2D, groups=groups),
        "conv3d": case(Conv3d, 3, out_channels=width + 1, **ANY_3D),
        "conv3d in groups": case(Conv3d, 3, out_channels=width, **ANY_3D, groups=width,
                                 bias=False),
        "linear": case(Linear, 0, out_features=width + 2),
        "max pooling of signals": case(MaxPool1d, 1, kernel=3, stride=2, padding=1),
        "max pooling": case(MaxPool2d, **WINDOW_2D, ceil_mode=True),
        "max pooling of volumes": case(MaxPool3d, 3, **WINDOW_3D),
        "average pooling of signals": case(AvgPool1d, 1, kernel=3, stride=2, padding=1),
        "average pooling": case(AvgPool2d, **WINDOW_2D, count_include_pad=False),
        "average pooling with padding": case(AvgPool2d, **WINDOW_2D, ceil_mode=True),
        "average pooling of volumes": case(AvgPool3d, 3, **WINDOW_3D),
        "average pooling of volumes without padding": case(
            AvgPool3d, 3, **WINDOW_3D, ceil_mode=True, count_include_pad=False),
        "adaptive average": case(AdaptiveAvgPool, size=(p + 1, p)),
        "global average": case(GlobalAvgPool),
        "global average of volumes": case(GlobalAvgPool, 3),
        "global maximum": case(GlobalMaxPool),
        "global maximum of volumes": case(GlobalMaxPool, 3),
        "relu": case(ReLU),
        "leaky relu": case(LeakyReLU, slope=0.2),
        "clip": case(Clip, low=-1.0, high=0.5),
        "sigmoid": case(Sigmoid),
        "tanh of features": case(Tanh, 0),
        "silu": case(SiLU),
        "gelu of volumes": case(GELU, 3),
        "gelu by tanh": case(GELU, tanh=True),
        "elu": case(ELU, alpha=0.7, scale=1.2),
        "mish": case(Mish),
        "affine": case(Affine, scale=-2.0, shift=0.5),
        "formula": case(Pointwise, steps=(("exp", "x0"), ("add", 1.0, "t0"), ("log", "t1"),
                                          ("tanh", "t2"), ("mul", "x0", "t3"))),
        "formula of volumes": case(Pointwise, 3, inputs=2, steps=(
            ("greater", "x0", "x1"), ("sub", "x0", "x1"), ("where", "t0", "t1", "x1"))),
        "formula without kept inputs": case(Pointwise, inputs=2, steps=(
            ("mul", 3.0, "x1"), ("sub", "x0", "t0"))),
        "formula of features": case(Pointwise, 0, parameter=(width + 1,), steps=(
            ("sigmoid", "w"), ("mul", "x0", "t0"), ("sin", "t1"))),
        "formula with a number for each channel": case(
            Pointwise, inputs=3, parameter=(width,), initial=0.5, steps=(
                ("mul", "x0", "w"), ("erf", "t0"), ("sub", "t1", "x1"), ("mul", "t2", "x2"))),
        "formula with one number": case(Pointwise, parameter=(1,), steps=(
            ("mul", "x0", "w"), ("sigmoid", "t0"), ("mul", "t1", "x0"))),
        "formula with positions": case(
            Pointwise, parameter=(width, 2 * p + 3, p + 4), initial=0.0,
            steps=(("add", "x0", "w"), ("atan", "t0"))),
        "formula with a map": case(Pointwise, parameter=(1, 2 * p + 3, 1), steps=(
            ("square", "x0"), ("add", "t0", 1.0), ("div", "w", "t1"))),
        "slopes": case(Pointwise, parameter=(width,), initial=0.25, steps=SLOPES),
        "one slope": case(Pointwise, parameter=(1,), initial=0.25, steps=SLOPES),
        "factors": case(Pointwise, parameter=(width,), steps=(("mul", "x0", "w"),)),
        "factors of features": case(Pointwise, 0, parameter=(width + 1,),
                                    steps=(("mul", "x0", "w"),)),
        "addends of volumes": case(Pointwise, 3, parameter=(width,), steps=(("add", "x0", "w"),)),
        "dropout": case(Dropout, rate=0.4),
        "dropout of features": case(Dropout, 0, rate=0.4),
        "lrn": case(LRN, size=3, alpha=0.5),
        "lrn of volumes": case(LRN, 3, size=5, alpha=0.5, k=1.0),
        "batch norm": case(BatchNorm),
        "batch norm of volumes": case(BatchNorm, 3),
        "batch norm of features": case(BatchNorm, 0),
        "batch norm without weights": case(BatchNorm, affine=False),
        "group norm": case(GroupNorm, groups=2 if width % 2 == 0 else 1),
        "instance norm": case(GroupNorm, groups=width, affine=False),
        "layer norm": case(LayerNorm),
        "layer norm of volumes": case(LayerNorm, 3),
        "layer norm of features": case(LayerNorm, 0),
        "channel norm": case(ChannelNorm),
        "mean of channels": case(Reduce, how="mean"),
        "sum of features": case(Reduce, 0),
        "maximum of channels and rows": case(Reduce, axes="cw", how="max"),
        "first maximum along a column": case(Reduce, axes="h", how="first"),
        "sum of planes": case(Reduce, 3, axes="dw"),
        "whole": case(Whole, **attention((width, 2 * p + 3, p + 4))),
        "whole features": case(Whole, 0, **attention((width + 1,))),
        "whole volumes": case(Whole, 3, **attention((width, p + 2, 2 * p + 3, p + 4))),
        "add": case(Add, inputs=3),
        "add volumes": case(Add, 3, inputs=2),
        "multiply": case(Multiply, inputs=2),
        "gate": case(Multiply, gated=True),
        "gate of volumes": case(Multiply, 3, gated=True),
        "concat": case(Concat, inputs=2),
        "concat volumes": case(Concat, 3, inputs=3),
        "flatten": case(Flatten),
        "flatten of volumes": case(Flatten, 3),
        "unflatten": case(Unflatten, 0, shape=(p, p, p + 1), features=p * p * (p + 1)),
        "expand": case(Expand, 0, size=(p, p + 1)),
        "select": case(Select, channels=(2, 0, 2, *range(width)), begin=(1, 0), step=(2, 1),
                       size=(p + 1, p + 2)),
        "pixel shuffle": case(PixelShuffle, block=(2, 3)),
        "pixel shuffle of volumes": case(PixelShuffle, 3, block=(2, 1, 2)),
        "pixel unshuffle": case(PixelUnshuffle, block=(1, 2)),
        "pixel unshuffle of volumes": case(PixelUnshuffle, 3, block=(1, 2, 2)),
        "transposed": case(ConvTranspose2d, out_channels=width + 1, **ANY_2D,
                           output_padding=(1, 0)),
        "transposed in groups": case(ConvTranspose2d, out_channels=2 * width, **ANY_2D,
                                     groups=groups),
        "transposed with gaps": case(ConvTranspose2d, out_channels=width, kernel=(1, 2),
                                     stride=(3, 4)),
        "transposed volumes": case(ConvTranspose3d, 3, out_channels=width, **ANY_3D),
        "nearest": case(Upsample, scale=(2, 3)),
        "bilinear": case(Upsample, scale=(3, 2), mode="linear"),
        "bilinear to any size": case(Upsample, size=(p + 5, p), mode="linear"),
        "trilinear": case(Upsample, 3, scale=(2, 1, 2), mode="linear", align_corners=True),
        "zeros around": case(Pad, begin=(2, 0), end=(1, 3)),
        "channels around": case(Pad, begin=(1, 0), end=(0, 2), value=0.5, channels=(1, 2)),
        "periodic": case(Pad, begin=(2, 1), end=(1, 3), mode="periodic"),
        "periodic volumes": case(Pad, 3, begin=(0, 2, 1), end=(0, 1, 3), mode="periodic"),
        "reflected": case(Pad, begin=(2, 1), end=(1, 3), mode="reflect"),
        "edges repeated": case(Pad, begin=(0, 2), end=(3, 1), mode="edge"),
        "softmax of pixels": case(SoftmaxCrossEntropy),
        "smoothed softmax of pixels": case(SoftmaxCrossEntropy, label_smoothing=0.1),
        "dice": case(DiceCrossEntropy),
        "smoothed dice of voxels": case(DiceCrossEntropy, 3, label_smoothing=0.2),
        "smoothed softmax": case(SoftmaxCrossEntropy, 0, label_smoothing=0.3),
        "mean squared error of voxels": case(MeanSquaredError, 3),
        "softmax": case(SoftmaxCrossEntropy, 0),
        "logistic": case(LogisticCrossEntropy, 0),
        "mean squared error": case(MeanSquaredError, 0),
    }
