"""Local response normalization across channels."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch


def lrn_forward(scratch: Scratch, x: Array, offset: int, size: int, alpha: float, beta: float,
                k: float, out: Array, scale: Array) -> None:
    channels = out.shape[1]
    for image in range(x.shape[0] if out.size else 0):
        for r in _row_blocks(x):
            # squares[c] = x[c + offset - size // 2] ** 2, zero outside x.
            part = x[image, :, r]
            squares = _window("squares", part, channels + size - 1, size // 2 - offset, scratch)
            np.multiply(squares, squares, out=squares)
            total = _window_sums(squares, size, channels, scratch)
            total *= alpha / size
            total += k
            scale[image, :, r] = total
            np.divide(part[offset : offset + channels], _power(total, beta, scratch),
                      out=out[image, :, r])


def lrn_backward(scratch: Scratch, x: Array, out: Array, scale: Array, dy: Array, offset: int,
                 size: int, alpha: float, beta: float, dx: Array) -> None:
    channels, owned = x.shape[1], out.shape[1]
    if out.size == 0:
        dx[...] = 0
        return
    for image in range(x.shape[0]):
        for r in _row_blocks(x):
            gradient, factor = dy[image, :, r], scale[image, :, r]
            ratio = np.multiply(gradient, out[image, :, r],
                                out=scratch.get("ratio", gradient.shape, dy.dtype))
            ratio /= factor
            # Output i reads inputs up to i + offset + (size - 1) // 2, so the first output that
            # reads input j is j - offset - (size - 1) // 2.
            ratios = _window("squares", ratio, channels + size - 1, (size - 1) // 2 + offset,
                             scratch)
            total = _window_sums(ratios, size, channels, scratch)
            total *= x[image, :, r]
            total *= -2 * alpha * beta / size
            total[offset : offset + owned] += np.divide(gradient, _power(factor, beta, scratch),
                                                        out=ratio)
            dx[image, :, r] = total


def _row_blocks(x: Array) -> list[slice]:
    """Blocks of rows (planes of volumes) whose channels all fit in the cache."""
    _, channels, rows, *width = x.shape
    step = max(1, 4 * BLOCK_ITEMS // max(1, channels * math.prod(width)))
    return [slice(start, start + step) for start in range(0, rows, step)]


def _window(name: str, a: Array, length: int, lead: int, scratch: Scratch) -> Array:
    """`length` channels; channel c is a[c - lead], or zero outside a."""
    result = scratch.get(name, (length, *a.shape[1:]), a.dtype)
    first, last = min(max(0, lead), length), max(0, min(length, a.shape[0] + lead))
    result[:first] = 0
    result[max(first, last) :] = 0
    if last > first:
        result[first:last] = a[first - lead : last - lead]
    return result


def _window_sums(a: Array, size: int, count: int, scratch: Scratch) -> Array:
    """sums[c] = a[c] + ... + a[c + size - 1] for `count` channels.

    The loop doubles the number of summands, 1, 2, 4, ..., and adds the sums that make up the binary
    representation of `size`, which takes log2(size) passes. A running sum would need subtractions,
    which cancel digits.
    """
    sums = scratch.get("sums", (count, *a.shape[1:]), a.dtype)
    start, power, empty = 0, 1, True
    while True:
        if size & power:
            if empty:
                sums[...] = a[start : start + count]
            else:
                sums += a[start : start + count]
            empty = False
            start += power
        if 2 * power > size:
            return sums
        # Two alternating buffers: NumPy would copy an operand that overlaps the result.
        wider = scratch.get(f"sums{power.bit_length() % 2}", (a.shape[0] - power, *a.shape[1:]),
                            a.dtype)
        a = np.add(a[:-power], a[power:], out=wider)
        power *= 2


def _power(scale: Array, beta: float, scratch: Scratch) -> Array:
    """scale ** beta; square roots for beta = 3/4 (AlexNet) are ten times faster than pow."""
    result = scratch.get("power", scale.shape, scale.dtype)
    if beta == 0.75:
        np.sqrt(scale, out=result)
        result *= np.sqrt(result, out=scratch.get("root", scale.shape, scale.dtype))
        return result
    return np.power(scale, beta, out=result)
