"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

from __future__ import annotations

from hpcpar.network.base import AXES, Input, Layer, Pair, Shape, axes_of
from hpcpar.network.loss import LogisticCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.network.matmul_layers import Conv, Conv2d, Conv3d, Linear
from hpcpar.network.merge import Add, Concat, Multiply
from hpcpar.network.norm import LRN, BatchNorm
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
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    GlobalMaxPool,
    MaxPool2d,
    MaxPool3d,
    Pool,
)
from hpcpar.network.windowed import Windowed

__all__ = [
    "AXES",
    "GELU",
    "LRN",
    "Activation",
    "Add",
    "Affine",
    "AvgPool",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Clip",
    "Concat",
    "Conv",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "Input",
    "Layer",
    "LeakyReLU",
    "Linear",
    "LogisticCrossEntropy",
    "Loss",
    "MaxPool2d",
    "MaxPool3d",
    "MeanSquaredError",
    "Multiply",
    "Pair",
    "Pool",
    "ReLU",
    "Shape",
    "SiLU",
    "Sigmoid",
    "SoftmaxCrossEntropy",
    "Tanh",
    "Windowed",
    "axes_of",
]
