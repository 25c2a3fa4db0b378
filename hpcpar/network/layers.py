"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

from __future__ import annotations

from hpcpar.network.base import AXES, Input, Layer, Pair, PassWork, Shape, axes_of, image_of
from hpcpar.network.loss import (
    LogisticCrossEntropy,
    Loss,
    MeanSquaredError,
    Outputs,
    SoftmaxCrossEntropy,
)
from hpcpar.network.matmul_layers import Conv, Conv1d, Conv2d, Conv3d, Linear
from hpcpar.network.merge import Add, Concat, Multiply
from hpcpar.network.norm import LRN, BatchNorm, GroupNorm, LayerNorm, Normalisation, SampleNorm
from hpcpar.network.pointwise import (
    GELU,
    Activation,
    Affine,
    Clip,
    Dropout,
    Flatten,
    LeakyReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
)
from hpcpar.network.pool import (
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
from hpcpar.network.resample import Pad, Resampled, Upsample
from hpcpar.network.transposed import ConvTranspose, ConvTranspose2d, ConvTranspose3d
from hpcpar.network.windowed import Windowed

__all__ = [
    "AXES",
    "GELU",
    "LRN",
    "Activation",
    "Add",
    "Affine",
    "AvgPool",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Clip",
    "Concat",
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "GroupNorm",
    "Input",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogisticCrossEntropy",
    "Loss",
    "MaxPool",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MeanSquaredError",
    "Multiply",
    "Normalisation",
    "Outputs",
    "Pad",
    "Pair",
    "PassWork",
    "Pool",
    "ReLU",
    "Resampled",
    "SampleNorm",
    "Shape",
    "SiLU",
    "Sigmoid",
    "SoftmaxCrossEntropy",
    "Tanh",
    "Upsample",
    "Windowed",
    "axes_of",
    "image_of",
]
