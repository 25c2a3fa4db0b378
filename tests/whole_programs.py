"""Programs of `Whole` layers, as a PyTorch module gives them."""

from __future__ import annotations

import json
import math
from typing import Any

from hpcpar.network.layers import Shape


def attention(sample: Shape, drop: float = 0.0) -> dict[str, Any]:
    """Options of a layer x + w2 softmax(w1 x)^T x over places, with dropout of the weights."""
    channels, places = sample[0], math.prod(sample[1:])
    calls: list[tuple[str, dict[str, Any]]] = [
        ("aten.reshape.default", {"self": "%x0", "shape": [{"samples": 1}, channels, places]}),
        ("aten.matmul.default", {"self": "%w0", "other": "%t0"}),
        ("aten.mul.Tensor", {"self": "%t1", "other": "%t0"}),
        ("aten.softmax.int", {"self": "%t2", "dim": -1}),
        ("aten.mul.Tensor", {"self": "%t3", "other": "%t0"}),
        ("aten.sum.dim_IntList", {"self": "%t4", "dim": [1], "keepdim": True}),
        ("aten.mul.Tensor", {"self": "%t5", "other": "%w1"}),
        ("aten.add.Tensor", {"self": "%t0", "other": "%t6"})]
    if drop:
        calls.append(("aten.dropout.default", {"input": "%t7", "p": drop, "train": True,
                                               "axis": 0}))
    calls.append(("aten.reshape.default", {"self": f"%t{len(calls) - 1}",
                                           "shape": [{"samples": 1}, *sample]}))
    return {"program": json.dumps({"inputs": [sample], "calls": calls, "constants": [],
                                   "drops": [bool(drop), math.prod(sample)], "state": []}),
            "output": sample, "kept_items": 6 * math.prod(sample),
            "sample_flops": 2.0 * channels * math.prod(sample),
            "tensors": (((channels, channels), 0.0, 0.5), ((channels, 1), 0.5, 0.1))}
