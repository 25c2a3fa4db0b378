"""From a layer's kind to what computes it."""

from __future__ import annotations

from hpcpar.network.layers import LRN, AvgPool2d, Conv2d, Dropout, Flatten, Layer, Linear, Loss, MaxPool2d, ReLU
from hpcpar.train.ops.base import Context, Op
from hpcpar.train.ops.conv import ConvOp
from hpcpar.train.ops.linear import LinearOp
from hpcpar.train.ops.loss import LossOp
from hpcpar.train.ops.pointwise import DropoutOp, FlattenOp, LRNOp, ReLUOp
from hpcpar.train.ops.pool import AvgPoolOp, MaxPoolOp

OPS: dict[type[Layer], type[Op]] = {
    Conv2d: ConvOp,
    Linear: LinearOp,
    MaxPool2d: MaxPoolOp,
    AvgPool2d: AvgPoolOp,
    ReLU: ReLUOp,
    Dropout: DropoutOp,
    Flatten: FlattenOp,
    LRN: LRNOp,
}


def build(ctx: Context) -> Op:
    """The op of a layer."""
    return LossOp(ctx) if isinstance(ctx.layer, Loss) else OPS[type(ctx.layer)](ctx)
