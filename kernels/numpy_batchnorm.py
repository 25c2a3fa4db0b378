"""Batch normalization in cache-sized blocks: float64 sums, and affine maps per channel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch

#: With fewer items per image and channel, a BLAS call is slower than NumPy.
SHORT = 32


def _blocks(a: Array) -> Iterator[tuple[slice, ...]]:
    """Indices of cache-sized blocks of an array [N, C, ...]: images, channels and rows."""
    if a.size == 0:
        return
    # Blocks are larger than in elementwise kernels: there are fewer arrays and more NumPy calls.
    limit = 2 * BLOCK_ITEMS
    image = a[0, 0].size
    rows = a.shape[2] if a.ndim > 2 else 1
    height = min(rows, max(1, limit * rows // image))
    channels = min(a.shape[1], max(1, limit // image))
    images = max(1, limit // (image * channels))
    for n in range(0, a.shape[0], images):
        for c in range(0, a.shape[1], channels):
            for r in range(0, rows, height):
                yield (slice(n, n + images), slice(c, c + channels), slice(r, r + height))[: a.ndim]


def _wide(name: str, part: Array, scratch: Scratch) -> Array:
    """A contiguous float64 copy [n, c, items] of a block; products of float32 numbers are exact."""
    wide = scratch.get(name, part.shape, np.float64)
    wide[...] = part
    return wide.reshape(*part.shape[:2], -1)


def _sums(a: Array) -> Array:
    """Sums per channel of [n, c, items]. A product with ones is twice as fast as NumPy's sum."""
    if a.shape[2] < SHORT:
        return a.sum(axis=(0, 2))
    return (a @ np.ones(a.shape[2])).sum(axis=0)


def _dots(a: Array, b: Array) -> Array:
    """Dot products per channel of arrays [n, c, items]."""
    if a.shape[2] < SHORT:
        return np.einsum("nci,nci->c", a, b)
    return np.matmul(a[:, :, None, :], b[:, :, :, None]).sum(axis=(0, 2, 3))


def channel_moments(scratch: Scratch, x: Array, out: Array) -> None:
    out[...] = 0
    for block in _blocks(x):
        wide = _wide("wide", x[block], scratch)
        out[block[1], 0] += _sums(wide)
        out[block[1], 1] += _dots(wide, wide)


def channel_moments_backward(scratch: Scratch, x: Array, dy: Array, mean: Array, inv_std: Array,
                             out: Array) -> None:
    out[...] = 0
    for block in _blocks(x):
        gradient = _wide("wide", dy[block], scratch)
        out[block[1], 0] += _sums(gradient)
        out[block[1], 1] += _dots(gradient, _wide("wide_x", x[block], scratch))
    out[:, 1] -= mean * out[:, 0]
    out[:, 1] *= inv_std


def batchnorm_statistics(moments: Array, count: int, eps: float, mean: Array, inv_std: Array,
                         running: Array | None, momentum: float) -> None:
    np.divide(moments[:, 0], count, out=mean)
    # Rounding errors could make the variance of a constant channel negative.
    variance = np.maximum(moments[:, 1] / count - mean * mean, 0)
    if running is not None:
        running[0] += momentum * (mean - running[0])
        running[1] += momentum * (variance * (count / max(1, count - 1)) - running[1])
    np.divide(1, np.sqrt(variance + eps), out=inv_std)


def batchnorm_running(running: Array, eps: float, mean: Array, inv_std: Array) -> None:
    mean[...] = running[0]
    np.divide(1, np.sqrt(running[1].astype(np.float64) + eps), out=inv_std)


def forward_line(mean: Array, inv_std: Array, w: Array, b: Array) -> tuple[Array, Array]:
    """Factor of x and addend of `Backend.batchnorm_forward`, float64 [C]."""
    factor = inv_std * w
    return factor, b - mean * factor


def backward_line(mean: Array, inv_std: Array, w: Array, sums: Array,
                  count: int) -> tuple[Array, Array, Array]:
    """Factors of dy and x, and addend of `Backend.batchnorm_backward`, float64 [C]."""
    x_factor = -inv_std * inv_std * sums[:, 1] / count
    return inv_std * w, x_factor, -inv_std * sums[:, 0] / count - x_factor * mean


def batchnorm_forward(x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                      out: Array) -> None:
    factor, addend = (_column(a, x) for a in forward_line(mean, inv_std, w, b))
    for block in _blocks(x):
        part = np.multiply(x[block], factor[block[1]], out=out[block])
        part += addend[block[1]]


def batchnorm_gradients(moments: Array, w: Array, sums: Array, db: Array | None,
                        dw: Array | None) -> None:
    np.multiply(moments, w[:, None], out=sums)
    if db is not None and dw is not None:
        db[...], dw[...] = moments.T


def batchnorm_backward(scratch: Scratch, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                       sums: Array, count: int, dx: Array) -> None:
    dy_factor, x_factor, addend = (
        _column(a, x) for a in backward_line(mean, inv_std, w, sums, count))
    for block in _blocks(x):
        c, part = block[1], x[block]
        affine = np.multiply(part, x_factor[c], out=scratch.get("affine", part.shape, dx.dtype))
        affine += addend[c]
        gradient = np.multiply(dy[block], dy_factor[c], out=dx[block])
        gradient += affine


def _column(a: Array, x: Array) -> Array:
    """A number per channel in x's type, in a shape that broadcasts to [N, C, ...]."""
    return a.astype(x.dtype).reshape((-1,) + (1,) * (x.ndim - 2))
