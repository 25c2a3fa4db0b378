"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

from __future__ import annotations

from hpcpar.network.base import AXES, Input, Layer, Pair, Shape, axes_of, image_of
from hpcpar.network.loss import LogisticCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from hpcpar.network.matmul_layers import Conv, Conv1d, Conv2d, Conv3d, Linear
from hpcpar.network.merge import Add, Concat
from hpcpar.network.norm import LRN, BatchNorm
from hpcpar.network.pointwise import Dropout, Flatten, ReLU
from hpcpar.network.pool import (
    AvgPool,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
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
    "LRN",
    "Add",
    "AvgPool",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
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
    "Input",
    "Layer",
    "Linear",
    "LogisticCrossEntropy",
    "Loss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MeanSquaredError",
    "Pad",
    "Pair",
    "Pool",
    "ReLU",
    "Resampled",
    "Shape",
    "SoftmaxCrossEntropy",
    "Upsample",
    "Windowed",
    "axes_of",
    "image_of",
]
