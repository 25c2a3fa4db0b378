"""The CUDA convolutions against loops over every read, on the CPU (see cuda_support)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.geometry import ConvSpec, Segment
from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import DTYPES, check, make, output_extent

# images, input channels, height, width, outputs, (kh, kw), stride, dilation, pads, segments
ONE = (Segment(0, 3, 0, 4),)
CONV_CASES = {
    "3x3": (3, 3, 5, 6, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ONE),
    "strides": (2, 3, 11, 9, 4, (5, 3), (4, 2), (1, 1), ((0, 0), (0, 0)), ONE),
    "asymmetric pads": (3, 3, 5, 4, 4, (3, 3), (2, 1), (1, 1), ((2, 0), (0, 1)), ONE),
    "dilation": (2, 3, 9, 8, 4, (3, 2), (1, 2), (2, 3), ((2, 1), (1, 3)), ONE),
    "1x1": (5, 3, 4, 4, 4, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), ONE),
    "1x1 on large images": (3, 3, 12, 11, 4, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)), ONE),
    "1x1 on parts of large images": (2, 4, 12, 11, 6, (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0)),
                                     (Segment(0, 2, 1, 3), Segment(1, 3, 4, 6))),
    "strided 1x1": (2, 3, 24, 23, 4, (1, 1), (2, 2), (1, 1), ((0, 0), (0, 0)), ONE),
    "shifted 1x1": (2, 3, 12, 11, 4, (1, 1), (1, 1), (1, 1), ((1, -1), (0, 0)), ONE),
    "two groups": (2, 4, 5, 5, 6, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)),
                   (Segment(0, 2, 0, 3), Segment(2, 4, 3, 6))),
    "depthwise": (2, 3, 5, 5, 3, (3, 3), (2, 2), (1, 1), ((1, 0), (1, 0)),
                  tuple(Segment(c, c + 1, c, c + 1) for c in range(3))),
    "parts": (2, 5, 4, 4, 6, (2, 2), (1, 1), (1, 1), ((0, 0), (1, 0)),
              (Segment(0, 2, 1, 3), Segment(1, 3, 4, 6))),
    "one image": (1, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), ONE),
    "no image": (0, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ONE),
    "no output row": (2, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((0, -3), (1, 1)), ONE),
    "no group": (2, 3, 5, 5, 4, (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), ()),
}


def conv_reads(case: tuple[Any, ...], out_shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Every (segment, u, v, input row, input column, output row, output column) of a convolution
    that lies inside x.
    """
    _, _, height, width, _, kernel, stride, dilation, pads, segments = case
    reads = []
    for segment, u, v in itertools.product(segments, *map(range, kernel)):
        for i, j in itertools.product(*map(range, out_shape[2:])):
            h, w = i * stride[0] - pads[0][0] + dilation[0] * u, j * stride[1] - pads[1][
                0] + dilation[1] * v
            if 0 <= h < height and 0 <= w < width:
                reads.append((segment, u, v, h, w, i, j))
    return reads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
def test_conv(backend: Any, case: tuple[Any, ...], dtype: str) -> None:
    images, channels, height, width, outputs, kernel, stride, dilation, pads, segments = case
    rng = np.random.default_rng(1)
    extents = [output_extent(*a) for a in zip((height, width), kernel, stride, dilation, pads,
                                              strict=True)]
    spec = ConvSpec(stride, dilation, pads, segments)
    group = segments[0].in_stop - segments[0].in_start if segments else channels
    x = make((images, channels, height, width), dtype, rng)
    dy = make((images, outputs, *extents), dtype, rng)
    w = rng.standard_normal((outputs, group, *kernel)).astype(dtype)
    bias = make((outputs,), dtype, rng)

    y = np.zeros(dy.shape)
    dx = np.zeros(x.shape)
    dw = np.zeros(w.shape)
    for s, u, v, h, v_w, i, j in conv_reads(case, dy.shape):
        ins, outs = slice(s.in_start, s.in_stop), slice(s.out_start, s.out_stop)
        y[:, outs, i, j] += x[:, ins, h, v_w] @ w[outs, :, u, v].T
        dx[:, ins, h, v_w] += dy[:, outs, i, j] @ w[outs, :, u, v]
        dw[outs, :, u, v] += dy[:, outs, i, j].T @ x[:, ins, h, v_w]

    ticks: list[int] = []
    out = make(dy.shape, dtype)
    backend.conv_forward(x, w, None, spec, out)
    check(out, y)
    backend.conv_forward(x, w, bias, spec, out, lambda: ticks.append(1))
    check(out, y + bias[:, None, None])
    if images >= 3:
        assert len(ticks) >= 2
    got = make(x.shape, dtype)
    backend.conv_backward_data(dy, w, spec, got)
    check(got, dx)
    got_w, got_bias = np.full(w.shape, 7, dtype), make((outputs,), dtype)
    backend.conv_backward_weight(x, dy, spec, got_w, got_bias)
    check(got_w, dw)
    check(got_bias, dy.sum(axis=(0, 2, 3)))
    backend.conv_backward_weight(x, dy, spec, got_w, None)
    check(got_w, dw)
