"""Kernels for both NumPy and CuPy arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcpar.kernels.interface import Array


def weighted_sums(x: Array, axes: Sequence[tuple[Array, Array] | None], out: Array) -> None:
    for axis, taps in enumerate(axes, 2):
        if taps is not None:
            shape = (-1, *(1,) * (x.ndim - 1 - axis))
            terms = (x.take(index, axis) * weight.reshape(shape)
                     for index, weight in zip(*taps, strict=True))
            total = next(terms)
            for term in terms:
                total += term
            x = total
    out[...] = x


# The kernels below process one image at a time to bound their temporary arrays.
def global_maxpool_forward(x: Array, out: Array, argmax: Array) -> None:
    if x.size == 0:
        return
    for image, maximum, index in zip(x, out, argmax, strict=True):
        flat = image.reshape(len(image), -1)
        maximum[...] = flat.max(axis=1)
        index[...] = flat.argmax(axis=1)


def global_maxpool_backward(xp: Any, dy: Array, argmax: Array, dx: Array) -> None:
    """See `Backend.global_maxpool_backward`; `xp` is the array module."""
    pixels = xp.arange(math.prod(dx.shape[2:])).reshape(dx.shape[2:])
    for gradient, index, target in zip(dy, argmax, dx, strict=True):
        channels = (-1, *(1,) * pixels.ndim)
        target[...] = xp.where(pixels == index.reshape(channels), gradient.reshape(channels), 0)


def image_products(a: Array, b: Array, out: Array) -> None:
    for left, right, sums in zip(a, b, out, strict=True):
        sums[...] = (left * right).sum(axis=tuple(range(1, left.ndim)))
