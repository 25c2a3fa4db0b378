"""Tests of pooling and normalisation that every backend must pass (see kernel_cases)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_support import DTYPES, FEW, blank, check, extents, fetch, place, random, torch_module

from hpcpar.kernels.interface import Backend, PoolSpec


@st.composite
def pool_cases(draw: Any) -> tuple[PoolSpec, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(spec, shape of x, shape of out, styles)."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return draw(st.tuples(st.integers(low, high), st.integers(low, high)))

    kernel, stride = pair(1, 4), pair(1, 4)
    pads = (pair(0, kernel[0] - 1), pair(0, kernel[1] - 1))
    low = [max(1, kernel[a] - sum(pads[a])) for a in (0, 1)]
    size = (draw(st.integers(low[0], low[0] + 8)), draw(st.integers(low[1], low[1] + 8)))
    images, channels = pair(1, 3)
    out = extents(size, kernel, stride, (1, 1), pads)
    styles = draw(st.tuples(*[st.integers(0, 3)] * 4))
    return PoolSpec(kernel, stride, pads), (images, channels, *size), (images, channels, *out), styles


@given(case=pool_cases(), dtype=st.sampled_from(DTYPES), ties=st.booleans())
@FEW
def test_maxpool_against_torch(backend: Backend, case: Any, dtype: Any, ties: bool) -> None:
    torch = torch_module()
    spec, shape, out_shape, styles = case
    x, dy = random(0, shape, dtype), random(1, out_shape, dtype)
    if ties:
        x = np.round(x)
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    (top, bottom), (left, right) = spec.pads
    padded = torch.nn.functional.pad(tx, (left, right, top, bottom), value=-np.inf)
    want, flat = torch.nn.functional.max_pool2d(padded, spec.kernel, spec.stride, return_indices=True)
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    row, col = np.divmod(flat.numpy(), padded.shape[3])
    row -= (np.arange(out_shape[2]) * spec.stride[0])[:, None]
    col -= np.arange(out_shape[3]) * spec.stride[1]
    out, dx = blank(backend, out_shape, dtype, styles[1]), blank(backend, shape, dtype, styles[3])
    argmax = blank(backend, out_shape, np.int16, styles[2])
    backend.maxpool_forward(place(backend, x, styles[0]), spec, out, argmax)
    check(out, want.detach())
    np.testing.assert_array_equal(fetch(argmax), row * spec.kernel[1] + col)
    backend.maxpool_backward(place(backend, dy, styles[2]), argmax, spec, dx)
    check(dx, tx.grad)


def test_maxpool_ties_and_large_windows(backend: Backend) -> None:
    """The first of several maxima, for a window with more places than an int8 counts."""
    x = np.zeros((1, 2, 14, 14), np.float32)
    x[0, 1, 12:, 12:] = 1
    spec = PoolSpec((14, 14), (14, 14), ((0, 0), (0, 0)))
    out, argmax = blank(backend, (1, 2, 1, 1), np.float32), blank(backend, (1, 2, 1, 1), np.int16)
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    assert fetch(argmax).ravel().tolist() == [0, 12 * 14 + 12]
    assert fetch(out).ravel().tolist() == [0, 1]


def test_maxpool_keeps_nan(backend: Backend) -> None:
    """A NaN must reach the loss, wherever in a window it is."""
    spec = PoolSpec((3, 3), (3, 3), ((0, 0), (0, 0)))
    x = np.zeros((1, 9, 3, 3), np.float32)
    x.reshape(9, 9)[np.arange(9), np.arange(9)] = np.nan
    out, argmax = blank(backend, (1, 9, 1, 1), np.float32), blank(backend, (1, 9, 1, 1), np.int16)
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    assert np.isnan(fetch(out)).all()


@given(case=pool_cases(), dtype=st.sampled_from(DTYPES))
@FEW
def test_avgpool_against_torch(backend: Backend, case: Any, dtype: Any) -> None:
    torch = torch_module()
    spec, shape, out_shape, styles = case
    x, dy = random(0, shape, dtype), random(1, out_shape, dtype)
    scale_h, scale_w = random(2, out_shape[2:3], dtype), random(3, out_shape[3:], dtype)
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    (top, bottom), (left, right) = spec.pads
    padded = torch.nn.functional.pad(tx, (left, right, top, bottom))
    scales = torch.from_numpy(np.outer(scale_h, scale_w).astype(np.float64))
    want = torch.nn.functional.avg_pool2d(padded, spec.kernel, spec.stride, divisor_override=1) * scales
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    out, dx = blank(backend, out_shape, dtype, styles[1]), blank(backend, shape, dtype, styles[3])
    dev_h, dev_w = place(backend, scale_h), place(backend, scale_w)
    backend.avgpool_forward(place(backend, x, styles[0]), spec, dev_h, dev_w, out)
    check(out, want.detach())
    backend.avgpool_backward(place(backend, dy, styles[2]), spec, dev_h, dev_w, dx)
    check(dx, tx.grad)


@given(case=pool_cases())
@FEW
def test_pool_adjoints(backend: Backend, case: Any) -> None:
    spec, shape, out_shape, _ = case
    x, dy = random(0, shape, np.float64), random(1, out_shape, np.float64)
    out, dx = blank(backend, out_shape, np.float64), blank(backend, shape, np.float64)
    half_h, half_w = (place(backend, np.full(extent, 0.5)) for extent in out_shape[2:])
    backend.avgpool_forward(place(backend, x), spec, half_h, half_w, out)
    backend.avgpool_backward(place(backend, dy), spec, half_h, half_w, dx)
    assert np.vdot(fetch(out), dy) == pytest.approx(np.vdot(x, fetch(dx)), rel=1e-9, abs=1e-9)
    argmax = blank(backend, out_shape, np.int16)
    # For maxima that exist (no window of padding only) the operator is linear near x.
    x += 10
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    backend.maxpool_backward(place(backend, dy), argmax, spec, dx)
    inside = np.isfinite(fetch(out))
    assert np.vdot(fetch(out)[inside], dy[inside]) == pytest.approx(np.vdot(x, fetch(dx)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5)])
def test_pool_and_lrn_empty(backend: Backend, shape: tuple[int, ...]) -> None:
    spec = PoolSpec((1, 1), (1, 1), ((0, 0), (0, 0)))
    x = place(backend, np.ones(shape, np.float32))
    out, dx, argmax = blank(backend, shape, np.float32), blank(backend, shape, np.float32), blank(backend, shape, np.int16)
    half_h, half_w = (place(backend, np.full(extent, 0.5, np.float32)) for extent in shape[2:])
    backend.maxpool_forward(x, spec, out, argmax)
    backend.maxpool_backward(out, argmax, spec, dx)
    backend.avgpool_forward(x, spec, half_h, half_w, out)
    backend.avgpool_backward(out, spec, half_h, half_w, dx)
    backend.lrn_forward(x, 0, 5, 1e-4, 0.75, 1.0, out, dx)
    backend.lrn_backward(x, out, out, out, 0, 5, 1e-4, 0.75, dx)


def test_pool_and_lrn_backward_of_no_outputs(backend: Backend) -> None:
    """A block may need inputs and own nothing: then its gradient is zero."""
    spec = PoolSpec((2, 2), (2, 2), ((0, 0), (0, 0)))
    none = place(backend, np.zeros((1, 2, 0, 2), np.float32))
    dx = blank(backend, (1, 2, 3, 4), np.float32)
    backend.maxpool_backward(none, blank(backend, none.shape, np.int16), spec, dx)
    check(dx, np.zeros(dx.shape))
    dx[...] = 99
    backend.avgpool_backward(none, spec, place(backend, np.ones(0, np.float32)), place(backend, np.ones(2, np.float32)), dx)
    check(dx, np.zeros(dx.shape))
    dx[...] = 99
    x, none = place(backend, np.ones((1, 2, 3, 4), np.float32)), place(backend, np.zeros((1, 0, 3, 4), np.float32))
    backend.lrn_backward(x, none, none, none, 0, 5, 1e-4, 0.75, dx)
    check(dx, np.zeros(dx.shape))


# -- normalisation ----------------------------------------------------------------------------------------------
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
def test_lrn_against_torch(
    backend: Backend, channels: int, size: int, beta: float, cuts: tuple[int, ...], style: int, dtype: Any
) -> None:
    """Blocks of channels with their halos make the whole tensor's result, and their gradients add up to its gradient."""
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
        backend.lrn_backward(part, out, scale, place(backend, dy[:, first:last], style), first - low, size, alpha, beta, dx)
        gradient[:, low:high] += fetch(dx)
    check(gradient, tx.grad)
