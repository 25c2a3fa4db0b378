"""The CUDA normalizations against their definitions, on the CPU (see cuda_support)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcpar.network.layers import GroupNorm, LayerNorm, SampleNorm
from tests.cuda_support import *  # noqa: F403
from tests.cuda_support import DTYPES, check, check_row, make, make_row


def lrn(x: np.ndarray, offset: int, outputs: int, size: int, alpha: float, beta: float,
        k: float) -> tuple[np.ndarray, np.ndarray]:
    scale = np.stack(
        [
            k
            + alpha
            / size
            * (x[:, max(0, i - size // 2) : max(0, i + (size - 1) // 2 + 1)] ** 2).sum(axis=1)
            for i in range(offset, offset + outputs)
        ],
        axis=1,
    )
    return x[:, offset : offset + outputs] / scale**beta, scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "offset", "outputs", "size"),
                         [(7, 0, 7, 5), (6, 2, 3, 5), (6, 1, 4, 4), (3, 0, 3, 9)])
def test_lrn(backend: Any, channels: int, offset: int, outputs: int, size: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    alpha, beta, k = 0.7, 0.75, 1.5
    x = make((2, channels, 2, 3), dtype, rng)
    out, scale, dx = (make((2, outputs, 2, 3), dtype), make((2, outputs, 2, 3), dtype),
                      make(x.shape, dtype))
    dy = make(out.shape, dtype, rng)
    y, expected_scale = lrn(x.astype(float), offset, outputs, size, alpha, beta, k)
    backend.lrn_forward(x, offset, size, alpha, beta, k, out, scale)
    check(out, y)
    check(scale, expected_scale)
    backend.lrn_backward(x, out, scale, dy, offset, size, alpha, beta, dx)
    expected = np.zeros(x.shape)
    step = 1e-5
    for place in np.ndindex(x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.astype(float)
            moved[place] += sign * step
            sides.append((lrn(moved, offset, outputs, size, alpha, beta, k)[0] * dy).sum())
        expected[place] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5 if dtype == "float32" else 1e-8)
    check(dx, dx)


def batch_norm(backend: Any, x: np.ndarray, dy: np.ndarray, out: np.ndarray,
               dx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both passes of a batch normalization; returns the sums over channels that they take."""
    channels = x.shape[1]
    w, b = np.random.default_rng(8).random((2, channels)).astype(x.dtype)
    mean, inv_std = np.linspace(0.1, 0.5, channels), np.linspace(1, 2, channels)
    moments, sums = np.empty((2, channels, 2))
    backend.channel_moments(x, moments)
    backend.channel_moments_backward(x, dy, mean, inv_std, sums)
    backend.batchnorm_forward(x, mean, inv_std, w, b, out)
    backend.batchnorm_backward(x, dy, mean, inv_std, w, sums.round(9), 9, dx)
    return moments, sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 20, 20), (4, 3, 7, 7), (9, 2, 1, 4), (3, 2, 2, 3, 2),
                                   (2, 3, 300, 1), (40, 3), (0, 3, 4, 4)])
def test_batch_norm_of_contiguous_arrays(backend: Any, shape: tuple[int, ...], in_place: bool,
                                         dtype: str) -> None:
    rng = np.random.default_rng(9)
    strided = [make(shape, dtype, rng) for _ in range(4)]
    values = [array.copy() for array in strided]
    expected_sums = batch_norm(backend, *strided)
    all_sums = []
    # All arrays aligned, none, or the inputs only.
    for offsets in ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1)):
        rows = [make_row(array.ravel(), offset)
                for array, offset in zip(values, offsets, strict=True)]
        x, dy, out, dx = (row.reshape(shape) for row in rows)
        if in_place:
            all_sums.append(batch_norm(backend, x, dy, out, dy))
            check_row(rows[1], strided[3].ravel())
            x[...] = values[0]
            batch_norm(backend, x, dy, x, dx)
            check_row(rows[0], strided[2].ravel())
        else:
            all_sums.append(batch_norm(backend, x, dy, out, dx))
            check_row(rows[2], strided[2].ravel())
            check_row(rows[3], strided[3].ravel())
    np.testing.assert_array_equal(all_sums, [all_sums[0]] * 3)
    np.testing.assert_allclose(all_sums[0], expected_sums, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", [GroupNorm("g", groups=2), LayerNorm("l"),
                                   GroupNorm("i", groups=4, affine=False)],
                         ids=lambda layer: layer.name)
def test_normalization_of_each_sample_equals_the_cpus(backend: Any, layer: SampleNorm) -> None:
    from tests import ops_support as ops  # skips where PyTorch is missing

    x, dy = (ops.random(seed, (3, 4, 5, 2), np.float64) for seed in (0, 1))
    own = tuple((0, extent) for extent in x.shape)
    made = []
    for kernels in (backend, None):
        p = ops.parameters(layer, x.shape[1:], np.float64, (0, 4))
        made.append(ops.make(layer, 3, [x], own, dy, p=p, backend=kernels,
                             moments=((0, 3), (0, layer.groups), (0, 2))))
        for step in ("statistics", "forward", "backward_weight", "backward"):
            getattr(made[-1], step)()
    found, expected = made
    check(found.blocks.y, expected.blocks.y)
    check(found.blocks.dx, expected.blocks.dx)
    if layer.affine:
        check(found.ctx.parameters.grad, expected.ctx.parameters.grad)
