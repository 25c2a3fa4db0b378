"""Batch normalization on a GPU."""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.cupy_launch import Launching, contiguous, merge_dims, strides, view
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array

#: Number of thread blocks of a large kernel: a few per multiprocessor of a large GPU.
_BLOCKS = 1024


@functools.lru_cache(maxsize=4096)
def _parts(shape: tuple[int, ...]) -> int:
    """Number of shares of a channel's items, one per thread block."""
    items = math.prod(shape)
    if items == 0:
        return 0
    channels = shape[1]
    return max(1, min(math.ceil(_BLOCKS / channels), items // channels // THREADS))


@functools.lru_cache(maxsize=4096)
def _geometry(shape: tuple[int, ...], *all_strides: tuple[int, ...]) -> tuple[
        tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Strides of each array over images, channels and merged pixels, and the extents."""
    extents, steps = merge_dims(shape[2:], *(s[2:] for s in all_strides))
    return (tuple((*s[:2], *step[2:]) for s, step in zip(all_strides, steps, strict=True)),
            (*shape[:2], *extents[2:]))


def _for_shares(gpu: Launching, kernel: str, arrays: tuple[Array, ...],
                more: tuple[Any, ...]) -> None:
    """Launch a kernel on the shares of every channel; all arrays have the same shape."""
    shape = arrays[0].shape
    steps, extents = _geometry(shape, *map(strides, arrays))
    views = (item for array, step in zip(arrays, steps, strict=True) for item in (array, *step))
    parts = _parts(shape)
    gpu.launch(kernel, arrays[0].dtype, parts * THREADS, (*views, *more, *extents, parts),
               rows=shape[1])


def _sum(gpu: Launching, kernel: str, arrays: tuple[Array, ...], more: tuple[Any, ...],
         out: Array) -> None:
    """Deterministic sums [C, 2] over samples and pixels: partial sums, then their sum in order."""
    channels, parts = arrays[0].shape[1], _parts(arrays[0].shape)
    if parts == 0:
        gpu.launch.unprepared()
        out.fill(0)
    elif parts == 1 and out.flags.c_contiguous:
        _for_shares(gpu, kernel, arrays, (*more, out))
    else:
        sums = cp.empty((channels, parts, 2), np.float64)
        _for_shares(gpu, kernel, arrays, (*more, sums))
        gpu.launch("channel_sums", arrays[0].dtype, channels, (sums, *view(out), channels, parts))


def _weights(gpu: Launching, weights: Array, dtype: Any) -> Array:
    """Weights as a kernel takes them."""
    return gpu.launch.unchanged(contiguous(weights, dtype), weights)


def channel_moments(gpu: Launching, x: Array, out: Array) -> None:
    _sum(gpu, "channel_moments", (x,), (), out)


def channel_moments_backward(gpu: Launching, x: Array, dy: Array, mean: Array, inv_std: Array,
                             out: Array) -> None:
    _sum(gpu, "channel_moments_backward", (x, dy), (mean, inv_std), out)


def batchnorm_statistics(gpu: Launching, moments: Array, count: int, eps: float, mean: Array,
                         inv_std: Array, running: Array | None, momentum: float) -> None:
    # Kernels do not accept None: without running statistics, this one gets an array to ignore.
    target = cp.empty((2, 1), np.float64) if running is None else running
    args = (*view(moments), mean, inv_std, *view(target), int(running is not None), len(mean),
            float(count), float(eps), float(momentum))
    gpu.launch("batchnorm_statistics", target.dtype, len(mean), args)


def batchnorm_running(gpu: Launching, running: Array, eps: float, mean: Array,
                      inv_std: Array) -> None:
    gpu.launch("batchnorm_running", running.dtype, len(mean),
               (*view(running), mean, inv_std, len(mean), float(eps)))


def batchnorm_forward(gpu: Launching, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                      out: Array) -> None:
    weights = (_weights(gpu, w, x.dtype), _weights(gpu, b, x.dtype))
    _for_shares(gpu, "batchnorm_forward", (x, out), (mean, inv_std, *weights))


def batchnorm_gradients(gpu: Launching, moments: Array, w: Array, sums: Array, db: Array | None,
                        dw: Array | None) -> None:
    # Kernels do not accept None: an array to ignore takes its place.
    written = (w, w, 0) if db is None or dw is None else (db, dw, 1)
    gpu.launch("batchnorm_gradients", w.dtype, len(w),
               (moments, _weights(gpu, w, w.dtype), sums, *written, len(w)))


def batchnorm_backward(gpu: Launching, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                       sums: Array, count: int, dx: Array) -> None:
    more = (mean, inv_std, _weights(gpu, w, x.dtype), *view(sums), float(count))
    _for_shares(gpu, "batchnorm_backward", (x, dy, dx), more)
