"""Convolutions of bfloat16 arrays where cuDNN has no engine, and their weight gradients."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.cudnn_graphs import ConvOperation
from tests.cudnn_support import compare, convolution
from tests.kernel_conv_cases import plain_conv


def test_bfloat16_without_an_engine_is_computed_on_float32_copies(library: ModuleType) -> None:
    """The limit leaves out engines whose workspace holds a weight gradient besides their own."""
    case = plain_conv(1, 4, 3, 5, 3, 1, 1)
    conv = convolution(library, limit_bytes=4 * math.prod(case.w))
    compare(conv, case, BFLOAT16)
    assert [(problem.operation, problem.dtype) for problem in conv.unsupported] == [
        (ConvOperation.WEIGHT, "bfloat16")]
    assert conv.fallback.calls == 0
    conv = convolution(library, limit_bytes=0)
    compare(conv, case, BFLOAT16)
    assert conv.fallback.calls == 4
    assert {problem.dtype for problem in conv.unsupported} == {"float32", "bfloat16"}


def test_a_larger_workspace_moves_the_weight_gradient(library: ModuleType) -> None:
    """A prepared call finds it in today's workspace."""
    conv, case = convolution(library), plain_conv(2, 4, 3, 9, 3)
    x, dy = np.ones(case.x, BFLOAT16), np.ones(case.out, BFLOAT16)
    dw = np.empty(case.w, np.float32)
    prepared = conv.prepare("conv_backward_weight", x, dy, case.spec, dw, None, None)
    assert prepared is not None
    before = conv.workspace
    for larger in (case, plain_conv(2, 4, 6, 9, 3)):
        compare(conv, larger, BFLOAT16)
        dw[...] = 0
        prepared()
        assert (dw == math.prod(case.out) / case.out[1]).all()
    assert conv.workspace is not before and conv.workspace_bytes > before.size
