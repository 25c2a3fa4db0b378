"""From a layer on a block to what computes it."""

from __future__ import annotations

import importlib

from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.runtime.ops.registry import operator_of

#: The modules that register the operators of the package's layers.
for _name in ("channelwise", "conv", "linear", "loss", "merge", "norm", "pointwise", "pool",
              "rearrange", "resample", "sample_norm"):
    importlib.import_module(f"hpcpar.runtime.ops.{_name}")


def build(ctx: Context) -> Operator:
    """The operator of a layer on a block."""
    return operator_of(ctx.layer)(ctx)
