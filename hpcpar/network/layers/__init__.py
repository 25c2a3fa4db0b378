"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

from __future__ import annotations

from hpcpar.network.layers.base import AXES, Input, Layer, Pair, PassWork, Shape, axes_of, image_of
from hpcpar.network.layers.channelwise import ChannelScale, ChannelShift, Channelwise, PReLU
from hpcpar.network.layers.loss import (
    DiceCrossEntropy,
    LogisticCrossEntropy,
    Loss,
    MeanSquaredError,
    Outputs,
    SoftmaxCrossEntropy,
)
from hpcpar.network.layers.matmul import Conv, Conv1d, Conv2d, Conv3d, Linear
from hpcpar.network.layers.merge import Add, Concat, Multiply
from hpcpar.network.layers.norm import (
    LRN,
    BatchNorm,
    ChannelNorm,
    GroupNorm,
    LayerNorm,
    Normalization,
    SampleNorm,
)
from hpcpar.network.layers.pointwise import (
    ELU,
    GELU,
    Activation,
    Affine,
    Clip,
    Dropout,
    Flatten,
    LeakyReLU,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
)
from hpcpar.network.layers.pool import (
    AvgPool,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Pool,
)
from hpcpar.network.layers.rearrange import Expand, Moves, Select, Unflatten
from hpcpar.network.layers.resample import AdaptiveAvgPool, Pad, Resampled, Upsample
from hpcpar.network.layers.transposed import ConvTranspose, ConvTranspose2d, ConvTranspose3d
from hpcpar.network.layers.windowed import Windowed

__all__ = ["AXES", "ELU", "GELU", "LRN", "Activation", "AdaptiveAvgPool", "Add", "Affine",
           "AvgPool", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm", "ChannelNorm",
           "ChannelScale", "ChannelShift", "Channelwise", "Clip", "Concat", "Conv", "Conv1d",
           "Conv2d", "Conv3d", "ConvTranspose", "ConvTranspose2d", "ConvTranspose3d",
           "DiceCrossEntropy", "Dropout", "Expand", "Flatten", "GlobalAvgPool", "GlobalMaxPool",
           "GroupNorm", "Input", "Layer", "LayerNorm", "LeakyReLU", "Linear",
           "LogisticCrossEntropy", "Loss", "MaxPool", "MaxPool1d", "MaxPool2d", "MaxPool3d",
           "MeanSquaredError", "Mish", "Moves", "Multiply", "Normalization", "Outputs", "PReLU",
           "Pad", "Pair", "PassWork", "Pool", "ReLU", "Resampled", "SampleNorm", "Select", "Shape",
           "SiLU", "Sigmoid", "SoftmaxCrossEntropy", "Tanh", "Unflatten", "Upsample", "Windowed",
           "axes_of", "image_of"]
