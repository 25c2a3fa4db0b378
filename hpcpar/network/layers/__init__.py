"""All layer classes in one import: ``from hpcpar.network.layers import Conv2d``."""

# ruff: noqa: F401 - other files import these names from here
from __future__ import annotations

from hpcpar.network.layers.base import AXES, Input, Layer, Pair, PassWork, Shape, axes_of, image_of
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
    Pointwise,
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
from hpcpar.network.layers.rearrange import (
    Expand,
    Moves,
    PixelShuffle,
    PixelUnshuffle,
    Select,
    Shuffled,
    Unflatten,
)
from hpcpar.network.layers.reduce import Reduce
from hpcpar.network.layers.resample import AdaptiveAvgPool, Pad, Resampled, Upsample
from hpcpar.network.layers.transposed import ConvTranspose, ConvTranspose2d, ConvTranspose3d
from hpcpar.network.layers.whole import Whole
from hpcpar.network.layers.windowed import Windowed
