"""Batch normalisation on a GPU."""

from __future__ import annotations

import math
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.cupy_launch import Launcher, contiguous, view, volume
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array

#: Number of thread blocks per reduction, given enough items: a few per multiprocessor of a large
#: GPU.
_BLOCKS = 1024


def _sum(launch: Launcher, kernel: str, arrays: tuple[Array, ...], more: tuple[Any, ...],
         out: Array) -> None:
    """Sums [C, 2] over samples and image, deterministic: partial sums, then their sum in order."""
    images, channels, *image = extents = volume(arrays[0]).shape
    items = images * math.prod(image)
    if channels == 0 or items == 0:
        out.fill(0)
        return
    parts = max(1, min(math.ceil(_BLOCKS / channels), items // THREADS))
    sums = cp.empty((channels, parts, 2), np.float64)
    views = (item for array in arrays for item in view(volume(array)))
    launch(kernel, arrays[0].dtype, parts * THREADS, (*views, *more, sums, *extents, parts),
           rows=channels)
    out[...] = sums.sum(axis=1)


def channel_moments(launch: Launcher, x: Array, out: Array) -> None:
    """See `Backend.channel_moments`."""
    _sum(launch, "channel_moments", (x,), (), out)


def channel_moments_backward(launch: Launcher, x: Array, dy: Array, mean: Array, inv_std: Array,
                             out: Array) -> None:
    """See `Backend.channel_moments_backward`."""
    _sum(launch, "channel_moments_backward", (x, dy), (mean, inv_std), out)


def batchnorm_statistics(launch: Launcher, moments: Array, count: int, eps: float, mean: Array,
                         inv_std: Array, running: Array | None, momentum: float) -> None:
    """See `Backend.batchnorm_statistics`."""
    # A kernel accepts no None: without running statistics it gets an array that it ignores.
    target = cp.empty((2, 1), np.float64) if running is None else running
    args = (*view(moments), mean, inv_std, *view(target), int(running is not None), len(mean),
            float(count), float(eps), float(momentum))
    launch("batchnorm_statistics", target.dtype, len(mean), args)


def batchnorm_running(launch: Launcher, running: Array, eps: float, mean: Array,
                      inv_std: Array) -> None:
    """See `Backend.batchnorm_running`."""
    launch("batchnorm_running", running.dtype, len(mean),
           (*view(running), mean, inv_std, len(mean), float(eps)))


def batchnorm_forward(launch: Launcher, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                      out: Array) -> None:
    """See `Backend.batchnorm_forward`."""
    weights = (contiguous(w, x.dtype), contiguous(b, x.dtype))
    launch("batchnorm_forward", x.dtype, x.size,
           (*view(volume(x)), mean, inv_std, *weights, *view(volume(out)), *volume(x).shape))


def batchnorm_backward(launch: Launcher, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                       sums: Array, count: int, dx: Array) -> None:
    """See `Backend.batchnorm_backward`."""
    inputs = (*view(volume(x)), *view(volume(dy)), mean, inv_std, contiguous(w, x.dtype),
              *view(sums))
    launch("batchnorm_backward", x.dtype, x.size,
           (*inputs, *view(volume(dx)), *volume(x).shape, float(count)))
