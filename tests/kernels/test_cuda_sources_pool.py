"""The CUDA pooling kernels against loops over every window, on the CPU (see cuda_support)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.geometry import PoolSpec
from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import DTYPES, check, make, output_extent

POOL_CASES = {
    "2x2": ((2, 3, 6, 4), (2, 2), (2, 2), ((0, 0), (0, 0))),
    "overlapping": ((2, 2, 7, 9), (3, 3), (2, 2), ((0, 0), (0, 0))),
    "asymmetric": ((1, 3, 5, 6), (3, 2), (1, 2), ((2, 0), (0, 1))),
    "gaps": ((2, 2, 7, 7), (2, 1), (3, 2), ((1, 1), (0, 0))),
    "global": ((2, 3, 3, 4), (3, 4), (1, 1), ((0, 0), (0, 0))),
    "empty": ((0, 3, 4, 4), (2, 2), (2, 2), ((0, 0), (0, 0))),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", POOL_CASES.values(), ids=POOL_CASES)
def test_pooling(backend: Any, case: tuple[Any, ...], dtype: str) -> None:
    shape, kernel, stride, pads = case
    rng = np.random.default_rng(2)
    extents = [
        output_extent(n, k, s, 1, p)
        for n, k, s, p in zip(shape[2:], kernel, stride, pads, strict=True)
    ]
    spec = PoolSpec(kernel, stride, pads)
    x = make(shape, dtype)
    x[...] = rng.integers(-3, 3, shape)  # many equal maxima
    dy = make((*shape[:2], *extents), dtype, rng)
    scale_h, scale_w = (make((extent,), dtype, rng) for extent in extents)

    most, where = np.full(dy.shape, -np.inf), np.full(dy.shape, -1)
    mean, dx, dx_mean = np.zeros(dy.shape), np.zeros(shape), np.zeros(shape)
    for n, c, i, j in np.ndindex(dy.shape):
        for u, v in itertools.product(*map(range, kernel)):
            h, w = i * stride[0] - pads[0][0] + u, j * stride[1] - pads[1][0] + v
            if 0 <= h < shape[2] and 0 <= w < shape[3]:
                mean[n, c, i, j] += scale_h[i] * scale_w[j] * x[n, c, h, w]
                dx_mean[n, c, h, w] += scale_h[i] * scale_w[j] * dy[n, c, i, j]
                if x[n, c, h, w] > most[n, c, i, j]:
                    most[n, c, i, j], where[n, c, i, j] = x[n, c, h, w], u * kernel[1] + v
        u, v = divmod(where[n, c, i, j], kernel[1])
        dx[n, c, i * stride[0] - pads[0][0] + u, j * stride[1] - pads[1][0] + v] += dy[n, c, i, j]

    out, argmax, got = make(dy.shape, dtype), make(dy.shape, np.int16), make(shape, dtype)
    backend.maxpool_forward(x, spec, out, argmax)
    check(out, most, exact=True)
    check(argmax, where, exact=True)
    backend.maxpool_backward(dy, argmax, spec, got)
    check(got, dx)
    backend.avgpool_forward(x, spec, (scale_h, scale_w), out)
    check(out, mean)
    backend.avgpool_backward(dy, spec, (scale_h, scale_w), got)
    check(got, dx_mean)


def test_maxpool_keeps_nan(backend: Any) -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 0, 1] = np.nan
    out, argmax = np.empty((1, 1, 2, 2), np.float32), np.empty((1, 1, 2, 2), np.int16)
    backend.maxpool_forward(x, PoolSpec((2, 2), (2, 2), ((0, 0), (0, 0))), out, argmax)
    np.testing.assert_array_equal(out[0, 0], [[np.nan, 7], [13, 15]])
    np.testing.assert_array_equal(argmax[0, 0], [[1, 3], [3, 3]])


def test_windows_in_the_padding(backend: Any) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    spec = PoolSpec((2, 2), (2, 2), ((2, 0), (0, 0)))
    out, argmax, dx = (np.empty((1, 1, 2, 1), np.float32), np.empty((1, 1, 2, 1), np.int16),
                       np.empty_like(x))
    backend.maxpool_forward(x, spec, out, argmax)
    np.testing.assert_array_equal(out.ravel(), [-np.inf, 3])
    np.testing.assert_array_equal(argmax.ravel(), [0, 3])
    backend.maxpool_backward(np.ones_like(out), argmax, spec, dx)
    np.testing.assert_array_equal(dx.ravel(), [0, 0, 0, 1])
