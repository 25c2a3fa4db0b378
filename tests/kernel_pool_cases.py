"""Tests of pooling for every backend (see kernel_cases)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.kernels.geometry import PoolSpec
from hpcpar.kernels.interface import Array, Backend
from tests.kernel_support import (
    DTYPES,
    FIFTY_EXAMPLES,
    blank,
    check,
    extents,
    fetch,
    pad,
    place,
    random,
    torch_module,
)


@st.composite
def pool_cases(draw: Any) -> tuple[PoolSpec, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(spec, shape of x, shape of out, styles)."""
    axes = draw(st.sampled_from([2, 2, 3]))
    limit = 4 if axes == 2 else 3
    kernel, stride = (draw(st.tuples(*[st.integers(1, limit)] * axes)) for _ in range(2))
    pads = tuple((draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel)
    low = [max(1, k - sum(p)) for k, p in zip(kernel, pads, strict=True)]
    size = tuple(draw(st.integers(least, least + (8 if axes == 2 else 4))) for least in low)
    images, channels = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    out = extents(size, kernel, stride, (1,) * axes, pads)
    styles = draw(st.tuples(*[st.integers(0, 3)] * 4))
    return (PoolSpec(kernel, stride, pads), (images, channels, *size), (images, channels, *out),
            styles)


def halves(backend: Backend, out_shape: tuple[int, ...], dtype: Any) -> list[Array]:
    """A scale of 1/2 for every output along every image axis."""
    return [place(backend, np.full(extent, 0.5, dtype)) for extent in out_shape[2:]]


@given(case=pool_cases(), dtype=st.sampled_from(DTYPES), ties=st.booleans())
@FIFTY_EXAMPLES
def test_maxpool_against_torch(backend: Backend, case: Any, dtype: Any, ties: bool) -> None:
    torch = torch_module()
    spec, shape, out_shape, styles = case
    x, dy = random(0, shape, dtype), random(1, out_shape, dtype)
    if ties:
        x = np.round(x)
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    padded = pad(torch, tx, spec.pads, -np.inf)
    pool = torch.nn.functional.max_pool2d if len(shape) == 4 else torch.nn.functional.max_pool3d
    want, flat = pool(padded, spec.kernel, spec.stride, return_indices=True)
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    code = np.zeros(out_shape, int)
    for axis, read in enumerate(np.unravel_index(flat.numpy(), padded.shape[2:])):
        corner = np.arange(out_shape[2 + axis]) * spec.stride[axis]
        code = code * spec.kernel[axis] + read - corner.reshape(-1, *(1,) * (len(shape) - 3 - axis))
    out, dx = blank(backend, out_shape, dtype, styles[1]), blank(backend, shape, dtype, styles[3])
    argmax = blank(backend, out_shape, np.int16, styles[2])
    backend.maxpool_forward(place(backend, x, styles[0]), spec, out, argmax)
    check(out, want.detach())
    np.testing.assert_array_equal(fetch(argmax), code)
    backend.maxpool_backward(place(backend, dy, styles[2]), argmax, spec, dx)
    check(dx, tx.grad)


def test_maxpool_ties_and_large_windows(backend: Backend) -> None:
    """The first of several maxima wins, also in windows of more than 127 elements."""
    x = np.zeros((1, 2, 14, 14), np.float32)
    x[0, 1, 12:, 12:] = 1
    spec = PoolSpec((14, 14), (14, 14), ((0, 0), (0, 0)))
    out, argmax = blank(backend, (1, 2, 1, 1), np.float32), blank(backend, (1, 2, 1, 1), np.int16)
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    assert fetch(argmax).ravel().tolist() == [0, 12 * 14 + 12]
    assert fetch(out).ravel().tolist() == [0, 1]


def test_maxpool_keeps_nan(backend: Backend) -> None:
    """A NaN reaches the output wherever it is in a window."""
    spec = PoolSpec((3, 3), (3, 3), ((0, 0), (0, 0)))
    x = np.zeros((1, 9, 3, 3), np.float32)
    x.reshape(9, 9)[np.arange(9), np.arange(9)] = np.nan
    out, argmax = blank(backend, (1, 9, 1, 1), np.float32), blank(backend, (1, 9, 1, 1), np.int16)
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    assert np.isnan(fetch(out)).all()


@given(case=pool_cases(), dtype=st.sampled_from(DTYPES))
@FIFTY_EXAMPLES
def test_avgpool_against_torch(backend: Backend, case: Any, dtype: Any) -> None:
    torch = torch_module()
    spec, shape, out_shape, styles = case
    x, dy = random(0, shape, dtype), random(1, out_shape, dtype)
    factors = [random(2 + axis, (extent,), dtype) for axis, extent in enumerate(out_shape[2:])]
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    pool = torch.nn.functional.avg_pool2d if len(shape) == 4 else torch.nn.functional.avg_pool3d
    want = pool(pad(torch, tx, spec.pads), spec.kernel, spec.stride, divisor_override=1)
    for axis, factor in enumerate(factors):
        want = want * torch.from_numpy(factor.astype(np.float64)).reshape(
            -1, *(1,) * (len(shape) - 3 - axis))
    want.backward(torch.from_numpy(dy.astype(np.float64)))
    out, dx = blank(backend, out_shape, dtype, styles[1]), blank(backend, shape, dtype, styles[3])
    scales = [place(backend, factor) for factor in factors]
    backend.avgpool_forward(place(backend, x, styles[0]), spec, scales, out)
    check(out, want.detach())
    backend.avgpool_backward(place(backend, dy, styles[2]), spec, scales, dx)
    check(dx, tx.grad)


@given(case=pool_cases())
@FIFTY_EXAMPLES
def test_pool_adjoints(backend: Backend, case: Any) -> None:
    spec, shape, out_shape, _ = case
    x, dy = random(0, shape, np.float64), random(1, out_shape, np.float64)
    out, dx = blank(backend, out_shape, np.float64), blank(backend, shape, np.float64)
    scales = halves(backend, out_shape, np.float64)
    backend.avgpool_forward(place(backend, x), spec, scales, out)
    backend.avgpool_backward(place(backend, dy), spec, scales, dx)
    assert np.vdot(fetch(out), dy) == pytest.approx(np.vdot(x, fetch(dx)), rel=1e-9, abs=1e-9)
    argmax = blank(backend, out_shape, np.int16)
    # Except for windows with only padding, the operator is linear near x.
    x += 10
    backend.maxpool_forward(place(backend, x), spec, out, argmax)
    backend.maxpool_backward(place(backend, dy), argmax, spec, dx)
    inside = np.isfinite(fetch(out))
    assert np.vdot(fetch(out)[inside], dy[inside]) == pytest.approx(
        np.vdot(x, fetch(dx)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("shape", [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0, 3),
                                   (0, 2, 3, 3, 3)])
def test_pool_empty(backend: Backend, shape: tuple[int, ...]) -> None:
    axes = len(shape) - 2
    spec = PoolSpec((1,) * axes, (1,) * axes, ((0, 0),) * axes)
    x = place(backend, np.ones(shape, np.float32))
    out, dx, argmax = (blank(backend, shape, np.float32), blank(backend, shape, np.float32),
                       blank(backend, shape, np.int16))
    scales = halves(backend, shape, np.float32)
    backend.maxpool_forward(x, spec, out, argmax)
    backend.maxpool_backward(out, argmax, spec, dx)
    backend.avgpool_forward(x, spec, scales, out)
    backend.avgpool_backward(out, spec, scales, dx)


def test_pool_backward_of_no_outputs(backend: Backend) -> None:
    """A block that owns no outputs has a zero gradient."""
    spec = PoolSpec((2, 2), (2, 2), ((0, 0), (0, 0)))
    none = place(backend, np.zeros((1, 2, 0, 2), np.float32))
    dx = blank(backend, (1, 2, 3, 4), np.float32)
    backend.maxpool_backward(none, blank(backend, none.shape, np.int16), spec, dx)
    check(dx, np.zeros(dx.shape))
    dx[...] = 99
    backend.avgpool_backward(none, spec, halves(backend, none.shape, np.float32), dx)
    check(dx, np.zeros(dx.shape))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2, 2, 3, 4), (1, 5, 1, 1), (0, 2, 3, 3)])
def test_global_avgpool(backend: Backend, shape: tuple[int, ...], style: int, dtype: Any) -> None:
    x, dy = random(0, shape, dtype), random(1, shape[:2], dtype)
    image = tuple(range(2, len(shape)))
    out, dx = blank(backend, shape[:2], dtype, style), blank(backend, shape, dtype, style)
    backend.global_avgpool_forward(place(backend, x, style), out)
    check(out, x.astype(np.float64).mean(axis=image))
    backend.global_avgpool_backward(place(backend, dy, style), dx)
    check(dx, np.broadcast_to(np.expand_dims(dy, image) / np.prod(shape[2:]), shape))


def test_global_avgpool_of_no_pixels(backend: Backend) -> None:
    out = blank(backend, (2, 3), np.float32)
    backend.global_avgpool_forward(place(backend, np.zeros((2, 3, 0, 4), np.float32)), out)
    check(out, np.zeros((2, 3)))
    backend.global_avgpool_backward(out, blank(backend, (2, 3, 0, 4), np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("style", range(4))
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 2, 2, 3, 4), (1, 5, 1, 1), (0, 2, 3, 3)])
def test_global_maxpool(backend: Backend, shape: tuple[int, ...], style: int, dtype: Any) -> None:
    """The result equals PyTorch's: the gradient goes to the first of equal maxima. A NaN stays."""
    torch = torch_module()
    x, dy = np.round(2 * random(0, shape, dtype)), random(1, shape[:2], dtype)
    tx = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    if x.size:
        pool = getattr(torch.nn.functional, f"adaptive_max_pool{len(shape) - 2}d")
        ty = pool(tx, 1).flatten(1)
        ty.backward(torch.from_numpy(dy.astype(np.float64)))
    out, dx = blank(backend, shape[:2], dtype, style), blank(backend, shape, dtype, style)
    argmax = blank(backend, shape[:2], np.int64, style)
    backend.global_maxpool_forward(place(backend, x, style), out, argmax)
    backend.global_maxpool_backward(place(backend, dy, style), argmax, dx)
    if x.size:
        check(out, ty.detach())
        check(dx, tx.grad)
        x[0, 0, 0, 0] = np.nan
        backend.global_maxpool_forward(place(backend, x, style), out, argmax)
        assert np.isnan(fetch(out)[0, 0]) and not np.isnan(fetch(out)[0, 1:]).any()
