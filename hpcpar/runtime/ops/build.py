"""From a layer's kind to what computes it."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.network.layers import (
    LRN,
    Activation,
    Add,
    AvgPool,
    BatchNorm,
    Concat,
    Conv,
    ConvTranspose,
    Dropout,
    Flatten,
    GlobalAvgPool,
    GlobalMaxPool,
    GroupNorm,
    Layer,
    LayerNorm,
    Linear,
    Loss,
    MaxPool2d,
    MaxPool3d,
    Multiply,
    Resampled,
)
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.conv import ConvOp, ConvTransposeOp
from hpcpar.runtime.ops.linear import LinearOp
from hpcpar.runtime.ops.loss import LossOp
from hpcpar.runtime.ops.merge import AddOp, ConcatOp, MultiplyOp
from hpcpar.runtime.ops.norm import BatchNormOp, LRNOp
from hpcpar.runtime.ops.pointwise import ActivationOp, DropoutOp, FlattenOp
from hpcpar.runtime.ops.pool import AvgPoolOp, GlobalAvgPoolOp, GlobalMaxPoolOp, MaxPoolOp
from hpcpar.runtime.ops.resample import resampled
from hpcpar.runtime.ops.sample_norm import GroupNormOp, LayerNormOp

OPS: dict[type[Layer], Callable[[Context], Operator]] = {
    ConvTranspose: ConvTransposeOp,
    Conv: ConvOp,
    Linear: LinearOp,
    MaxPool2d: MaxPoolOp,
    MaxPool3d: MaxPoolOp,
    AvgPool: AvgPoolOp,
    Resampled: resampled,
    GlobalAvgPool: GlobalAvgPoolOp,
    GlobalMaxPool: GlobalMaxPoolOp,
    Activation: ActivationOp,
    Dropout: DropoutOp,
    Flatten: FlattenOp,
    LRN: LRNOp,
    BatchNorm: BatchNormOp,
    GroupNorm: GroupNormOp,
    LayerNorm: LayerNormOp,
    Add: AddOp,
    Multiply: MultiplyOp,
    Concat: ConcatOp,
    Loss: LossOp,
}


def build(ctx: Context) -> Operator:
    """The op of a layer."""
    return next(op for layer, op in OPS.items() if isinstance(ctx.layer, layer))(ctx)
