"""Tests of LRN and batch normalization for every backend (see kernel_cases)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hpcpar.kernels.interface import Backend
from tests.kernel_support import DTYPES, blank, check, fetch, place, random, torch_module


# -- local response normalization ------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize(
    ("channels", "size", "beta", "cuts"),
    [
        (8, 5, 0.75, (0, 8)),
        (9, 5, 0.75, (0, 2, 3, 9)),
        (7, 4, 0.75, (0, 3, 7)),
        (6, 1, 0.5, (0, 6)),
        (7, 6, 1.3, (0, 1, 7)),
        (3, 9, 0.75, (0, 1, 3)),
    ],
)
def test_lrn_against_torch(backend: Backend, channels: int, size: int, beta: float,
                           cuts: tuple[int, ...], style: int, dtype: Any) -> None:
    """Blocks of channels with halos give the result and the gradients of the whole tensor."""
    torch = torch_module()
    shape, alpha, k = (2, channels, 4, 3), 0.7, 1.5
    x, dy = random(0, shape, dtype), random(1, shape, dtype)
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    want = torch.nn.functional.local_response_norm(tx, size, alpha, beta, k)
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    gradient = np.zeros(shape, dtype)
    for first, last in pairwise(cuts):
        low, high = max(0, first - size // 2), min(channels, last + (size - 1) // 2)
        part = place(backend, x[:, low:high], style)
        out, scale = (blank(backend, (2, last - first, 4, 3), dtype, style) for _ in range(2))
        backend.lrn_forward(part, first - low, size, alpha, beta, k, out, scale)
        check(out, want.detach()[:, first:last])
        dx = blank(backend, part.shape, dtype, style)
        backend.lrn_backward(part, out, scale, place(backend, dy[:, first:last], style),
                             first - low, size, alpha, beta, dx)
        gradient[:, low:high] += fetch(dx)
    check(gradient, tx.grad)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5), (2, 2, 0, 5, 5)])
def test_lrn_empty(backend: Backend, shape: tuple[int, ...]) -> None:
    x, out, dx = (place(backend, np.ones(shape, np.float32)), blank(backend, shape, np.float32),
                  blank(backend, shape, np.float32))
    backend.lrn_forward(x, 0, 5, 1e-4, 0.75, 1.0, out, dx)
    backend.lrn_backward(x, out, out, out, 0, 5, 1e-4, 0.75, dx)


def test_lrn_backward_of_no_outputs(backend: Backend) -> None:
    dx = blank(backend, (1, 2, 3, 4), np.float32)
    x, none = (place(backend, np.ones((1, 2, 3, 4), np.float32)),
               place(backend, np.zeros((1, 0, 3, 4), np.float32)))
    backend.lrn_backward(x, none, none, none, 0, 5, 1e-4, 0.75, dx)
    check(dx, np.zeros(dx.shape))


# -- batch normalization ---------------------------------------------------------------------------
SHAPES = [(4, 3), (5, 3, 4, 6), (2, 4, 3, 2, 5), (1, 2, 9, 7), (40, 5, 1, 1)]
EPS, MOMENTUM = 1e-3, 0.2


def column(a: np.ndarray, axes: int) -> np.ndarray:
    """A number per channel, in a shape that broadcasts over the image axes."""
    return a.reshape(-1, *(1,) * (axes - 2))


@pytest.fixture
def sums_tolerance() -> float:
    """How far sums of gradients, which are added in float64, may be off."""
    return 1e-9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_batchnorm_against_torch(backend: Backend, shape: tuple[int, ...], style: int,
                                 dtype: Any, sums_tolerance: float) -> None:
    torch = torch_module()
    channels, count = shape[1], shape[0] * int(np.prod(shape[2:]))
    x, dy, w, b = (random(i, s, dtype)
                   for i, s in enumerate((shape, shape, (channels,), (channels,))))
    running = np.abs(random(4, (2, channels), dtype))
    tx, tw, tb = (torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, w, b))
    t_mean, t_variance = (torch.from_numpy(a.astype(np.float64)) for a in running)
    want = torch.nn.functional.batch_norm(tx, t_mean, t_variance, tw, tb, True, MOMENTUM, EPS)
    want.backward(torch.from_numpy(dy.astype(np.float64)))

    dev_x, dev_dy, dev_w, dev_b = (place(backend, a, style) for a in (x, dy, w, b))
    moments, sums = (blank(backend, (channels, 2), np.float64, style) for _ in range(2))
    mean, inv_std = (blank(backend, (channels,), np.float64) for _ in range(2))
    backend.channel_moments(dev_x, moments)
    image = (0, *range(2, len(shape)))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(fetch(moments), np.stack([wide.sum(image), (wide**2).sum(image)], 1),
                               rtol=1e-12, atol=1e-12)
    dev_running = place(backend, running, style)
    backend.batchnorm_statistics(moments, count, EPS, mean, inv_std, dev_running, MOMENTUM)
    check(dev_running, torch.stack([t_mean, t_variance]))
    unchanged = blank(backend, (channels,), np.float64)
    backend.batchnorm_statistics(moments, count, EPS, unchanged, inv_std, None, MOMENTUM)
    np.testing.assert_array_equal(fetch(unchanged), fetch(mean))
    out, dx = blank(backend, shape, dtype, style), blank(backend, shape, dtype, style)
    backend.batchnorm_forward(dev_x, mean, inv_std, dev_w, dev_b, out)
    check(out, want.detach())
    backend.channel_moments_backward(dev_x, dev_dy, mean, inv_std, sums)
    np.testing.assert_allclose(fetch(sums), np.stack([tb.grad, tw.grad], 1), rtol=sums_tolerance,
                               atol=sums_tolerance)
    sums[...] = sums * dev_w[:, None]
    backend.batchnorm_backward(dev_x, dev_dy, mean, inv_std, dev_w, sums, count, dx)
    check(dx, tx.grad)
    backend.batchnorm_backward(dev_x, dev_dy, mean, inv_std, dev_w, sums, count, dev_dy)
    np.testing.assert_array_equal(fetch(dev_dy), fetch(dx))
    backend.batchnorm_forward(dev_x, mean, inv_std, dev_w, dev_b, dev_x)
    np.testing.assert_array_equal(fetch(dev_x), fetch(out))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
def test_batchnorm_by_running_statistics(backend: Backend, style: int, dtype: Any) -> None:
    x, w, b, running = (random(i, s, dtype)
                        for i, s in enumerate(((3, 4, 5, 2), (4,), (4,), (2, 4))))
    running[1] = np.abs(running[1])
    mean, inv_std = (blank(backend, (4,), np.float64) for _ in range(2))
    backend.batchnorm_running(place(backend, running, style), EPS, mean, inv_std)
    out = blank(backend, x.shape, dtype, style)
    backend.batchnorm_forward(place(backend, x, style), mean, inv_std, place(backend, w),
                              place(backend, b), out)
    m, v, w, b = (column(a.astype(np.float64), 4) for a in (*running, w, b))
    check(out, (x - m) / np.sqrt(v + EPS) * w + b)


def test_batchnorm_far_from_zero(backend: Backend) -> None:
    """The sums need float64: the variance is 1e-8 times the mean of squares."""
    x = (1000 + 0.1 * random(0, (64, 2, 20, 20), np.float64)).astype(np.float32)
    moments, (mean, inv_std) = (blank(backend, (2, 2), np.float64),
                                (blank(backend, (2,), np.float64) for _ in range(2)))
    backend.channel_moments(place(backend, x), moments)
    backend.batchnorm_statistics(moments, 64 * 400, 0.0, mean, inv_std, None, 0.1)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(fetch(mean), wide.mean(axis=(0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(fetch(inv_std), 1 / wide.std(axis=(0, 2, 3)), rtol=1e-6)


def test_batchnorm_of_one_item_and_of_a_constant(backend: Backend) -> None:
    """Neither a division by zero nor the root of a negative variance (from rounding) occurs."""
    x = np.full((1, 3), 0.1, np.float32)
    moments, (mean, inv_std) = (blank(backend, (3, 2), np.float64),
                                (blank(backend, (3,), np.float64) for _ in range(2)))
    running = place(backend, np.ones((2, 3), np.float32))
    backend.channel_moments(place(backend, x), moments)
    backend.batchnorm_statistics(moments, 1, 1e-5, mean, inv_std, running, 0.5)
    check(running, [[0.55] * 3, [0.5] * 3])
    for value in (0.1, 1 / 3, 7e5):
        backend.channel_moments(place(backend, np.full((7, 3, 3, 3), value, np.float32)), moments)
        backend.batchnorm_statistics(moments, 63, 1e-5, mean, inv_std, None, 0.5)
        assert np.isfinite(fetch(inv_std)).all()


@pytest.mark.parametrize("shape",
                         [(0, 3, 4, 4), (2, 0, 4, 4), (2, 3, 0, 4), (0, 3), (2, 3, 4, 0, 4)])
def test_batchnorm_empty(backend: Backend, shape: tuple[int, ...]) -> None:
    channels = shape[1]
    x, out = place(backend, np.zeros(shape, np.float32)), blank(backend, shape, np.float32)
    sums, mean, w = (place(backend, np.ones((channels, *more), t))
                     for more, t in (((2,), np.float64), ((), np.float64), ((), np.float32)))
    backend.channel_moments(x, sums)
    check(sums, np.zeros((channels, 2)))
    sums[...] = 1
    backend.batchnorm_forward(x, mean, mean, w, w, out)
    backend.channel_moments_backward(x, out, mean, mean, sums)
    check(sums, np.zeros((channels, 2)))
    backend.batchnorm_backward(x, out, mean, mean, w, sums, 1, out)
