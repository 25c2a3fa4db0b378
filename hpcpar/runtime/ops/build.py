"""Creates the operator of a layer; importing this module registers the package's operators."""

from __future__ import annotations

import importlib

from hpcpar.kernels.bfloat16 import is_half
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator_of
from hpcpar.runtime.ops.widened import WidenedOp

#: The modules that register the operators of the package's layers.
for _name in ("conv", "linear", "loss", "merge", "norm", "pointwise", "pool",
              "rearrange", "reduce", "resample", "sample_norm", "whole"):
    importlib.import_module(f"hpcpar.runtime.ops.{_name}")


def build(ctx: Context) -> Operator:
    """The operator of the context's layer."""
    make = operator_of(ctx.layer)
    if is_half(ctx.blocks.xs[0]) and not getattr(make, "takes_bfloat16", False):
        return WidenedOp(ctx, make)
    return make(ctx)
