"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

from __future__ import annotations

from hpcpar.network.base import AXES, Input, Layer, Pair, Shape, axes_of
from hpcpar.network.loss import LogisticCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.network.matmul_layers import Conv, Conv2d, Conv3d, Linear
from hpcpar.network.merge import Add, Concat
from hpcpar.network.norm import LRN, BatchNorm, GroupNorm, LayerNorm, Normalisation, SampleNorm
from hpcpar.network.pointwise import Dropout, Flatten, ReLU
from hpcpar.network.pool import (
    AvgPool,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    MaxPool2d,
    MaxPool3d,
    Pool,
)
from hpcpar.network.windowed import Windowed

__all__ = [
    "AXES",
    "LRN",
    "Add",
    "AvgPool",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "Concat",
    "Conv",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Flatten",
    "GlobalAvgPool",
    "GroupNorm",
    "Input",
    "Layer",
    "LayerNorm",
    "Linear",
    "LogisticCrossEntropy",
    "Loss",
    "MaxPool2d",
    "MaxPool3d",
    "MeanSquaredError",
    "Normalisation",
    "Pair",
    "Pool",
    "ReLU",
    "SampleNorm",
    "Shape",
    "SoftmaxCrossEntropy",
    "Windowed",
    "axes_of",
]
