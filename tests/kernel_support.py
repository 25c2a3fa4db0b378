"""Helpers for the kernel tests: arrays with various strides on a device, and comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from hpcpar.kernels.interface import Array, Backend

DTYPES = (np.float64, np.float32)
FIFTY_EXAMPLES = settings(max_examples=50)


def torch_module() -> Any:
    """PyTorch; skips the test if it is missing."""
    return pytest.importorskip("torch", reason="PyTorch is the reference of this test",
                               exc_type=ImportError)


def place(backend: Backend, host: np.ndarray, style: int = 0) -> Array:
    """A device copy: contiguous (0), a box of a larger array (1), with gaps between items (2), or
    with reversed axes (3).
    """
    xp = backend.xp
    if style == 0:
        return xp.asarray(host.copy())
    if style == 3:
        return xp.asarray(np.array(host.T, order="C")).T
    step = 1 if style == 1 else 2
    base = xp.zeros([step * extent + 3 for extent in host.shape], host.dtype)
    view = base[tuple(slice(1, 1 + step * extent, step) for extent in host.shape)]
    view[...] = xp.asarray(host)
    return view


def blank(backend: Backend, shape: tuple[int, ...], dtype: Any, style: int = 0) -> Array:
    """An output array filled with a value that a kernel must overwrite."""
    return place(backend, np.full(shape, 99, dtype), style)


def fetch(a: Array) -> np.ndarray:
    """A host copy of any array."""
    return np.array(a.get()) if hasattr(a, "get") else np.array(a)


def loss_sums(backend: Backend, kernel: str, *args: Any) -> list[float]:
    """The `sums` of a loss kernel: [loss, correct predictions]."""
    sums = backend.zeros((2,), np.float64)
    getattr(backend, kernel)(*args, sums)
    loss, correct = fetch(sums)
    return [float(loss), float(correct)]


def check(got: Array, want: Any) -> None:
    """Equality up to rounding: 1e-10 of the largest value in float64, 2e-5 in float32."""
    result, expected = fetch(got), np.asarray(want)
    assert result.shape == expected.shape
    if expected.size:
        bound = (1e-10 if result.dtype == np.float64 else 2e-5) * max(
            1e-3, float(np.abs(expected).max()))
        np.testing.assert_allclose(result, expected, rtol=0, atol=bound)


def random(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def extents(size: Any, kernel: Any, stride: Any, dilation: Any, pads: Any) -> tuple[int, ...]:
    """Number of outputs of a window over a padded extent."""
    window = zip(size, kernel, stride, dilation, pads, strict=True)
    return tuple((n + sum(pad) - d * (k - 1) - 1) // s + 1 for n, k, s, d, pad in window)


def pad(torch: Any, x: Any, pads: Any, value: float = 0.0) -> Any:
    """A padded torch tensor; F.pad takes the last axis first."""
    return torch.nn.functional.pad(x, [side for pair in reversed(pads) for side in pair],
                                   value=value)
