"""Kernels on the arrays of NumPy and CuPy alike, image by image to bound what they allocate."""

from __future__ import annotations

import math
from typing import Any

from hpcpar.kernels.interface import Array


def global_maxpool_forward(x: Array, out: Array, argmax: Array) -> None:
    """See `Backend.global_maxpool_forward`."""
    if x.size == 0:
        return
    for image, most, place in zip(x, out, argmax, strict=True):
        flat = image.reshape(len(image), -1)
        most[...] = flat.max(axis=1)
        place[...] = flat.argmax(axis=1)


def global_maxpool_backward(xp: Any, dy: Array, argmax: Array, dx: Array) -> None:
    """See `Backend.global_maxpool_backward`; `xp` is the array module."""
    pixels = xp.arange(math.prod(dx.shape[2:])).reshape(dx.shape[2:])
    for gradient, place, target in zip(dy, argmax, dx, strict=True):
        channels = (-1, *(1,) * pixels.ndim)
        target[...] = xp.where(pixels == place.reshape(channels), gradient.reshape(channels), 0)


def image_products(a: Array, b: Array, out: Array) -> None:
    """See `Backend.image_products`."""
    for one, other, sums in zip(a, b, out, strict=True):
        sums[...] = (one * other).sum(axis=tuple(range(1, one.ndim)))
