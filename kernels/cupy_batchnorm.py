"""Batch normalization on a GPU, and sums by channel."""

from __future__ import annotations

import functools
import math
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.bfloat16 import is_half, wide_type
from hpcpar.kernels.cupy_launch import Launching, contiguous, merge_dims, strides, view
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array

#: Number of thread blocks of a large kernel: a few per multiprocessor of a large GPU.
_BLOCKS = 1024
#: Largest number of a channel's items for one thread block: 32 per thread. The block has the
#: channel's sums without another launch, so it also does what follows them.
_ONE_BLOCK_ITEMS = 32 * THREADS


@functools.lru_cache(maxsize=4096)
def parts(shape: tuple[int, ...]) -> int:
    """Number of shares of a channel's items, one per thread block."""
    items = math.prod(shape)
    if items == 0:
        return 0
    channels = shape[1]
    if items // channels <= _ONE_BLOCK_ITEMS:
        return 1
    return min(math.ceil(_BLOCKS / channels), items // channels // THREADS)


@functools.lru_cache(maxsize=4096)
def _geometry(shape: tuple[int, ...], *all_strides: tuple[int, ...]) -> tuple[
        tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Strides of each array over images, channels and merged pixels, and the extents."""
    extents, steps = merge_dims(shape[2:], *(s[2:] for s in all_strides))
    return (tuple((*s[:2], *step[2:]) for s, step in zip(all_strides, steps, strict=True)),
            (*shape[:2], *extents[2:]))


def for_shares(gpu: Launching, kernel: str, arrays: tuple[Array, ...],
               more: tuple[Any, ...]) -> None:
    """Launch a kernel on the shares of every channel; all arrays have the same shape."""
    shape = arrays[0].shape
    steps, extents = _geometry(shape, *map(strides, arrays))
    views = (item for array, step in zip(arrays, steps, strict=True) for item in (array, *step))
    shares = parts(shape)
    gpu.launch(kernel, arrays[0].dtype, shares * THREADS, (*views, *more, *extents, shares),
               rows=shape[1])


def partial_sums(gpu: Launching, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Arguments of the SUMS macro: memory for the sums of all shares, and their counters."""
    sums = cp.empty((shape[1], parts(shape) if parts(shape) > 1 else 0, 2), np.float64)
    return sums, gpu.launch.counters(shape[1])


def _sum(gpu: Launching, kernel: str, arrays: tuple[Array, ...], more: tuple[Any, ...],
         out: Array) -> None:
    """Deterministic sums [C, 2] over samples and pixels."""
    shape = arrays[0].shape
    if parts(shape) == 0:
        gpu.launch.unprepared()
        out.fill(0)
    else:
        for_shares(gpu, kernel, arrays, (*more, *view(out), *partial_sums(gpu, shape)))


def sum_samples(gpu: Launching, dy: Array, out: Array) -> None:
    if is_half(dy) and out.flags.c_contiguous and parts(dy.shape):
        for_shares(gpu, "sum_samples", (dy,), (out, *partial_sums(gpu, dy.shape)))
    else:
        gpu.launch.unprepared()
        dy.sum(axis=(0, *range(2, dy.ndim)), out=out)


def _weights(gpu: Launching, weights: Array, dtype: Any) -> Array:
    """Weights as a kernel takes them."""
    return gpu.launch.unchanged(contiguous(weights, dtype), weights)


def channel_moments(gpu: Launching, x: Array, out: Array) -> None:
    _sum(gpu, "channel_moments", (x,), (), out)


def channel_moments_backward(gpu: Launching, x: Array, dy: Array, mean: Array, inv_std: Array,
                             out: Array) -> None:
    _sum(gpu, "channel_moments_backward", (x, dy), (mean, inv_std), out)


def statistics(moments: Array, count: int, eps: float, mean: Array, inv_std: Array,
               running: Array | None, momentum: float) -> tuple[Any, ...]:
    """Arguments of the STATISTICS macro."""
    # Kernels do not accept None: without running statistics, this one gets an array to ignore.
    target = cp.empty((2, 1), np.float64) if running is None else running
    return (mean, inv_std, *view(target), int(running is not None), float(count), float(eps),
            float(momentum))


def batchnorm_statistics(gpu: Launching, moments: Array, count: int, eps: float, mean: Array,
                         inv_std: Array, running: Array | None, momentum: float) -> None:
    args = statistics(moments, count, eps, mean, inv_std, running, momentum)
    dtype = np.float64 if running is None else running.dtype
    gpu.launch("batchnorm_statistics", dtype, len(mean), (*view(moments), *args, len(mean)))


def batchnorm_running(gpu: Launching, running: Array, eps: float, mean: Array,
                      inv_std: Array) -> None:
    gpu.launch("batchnorm_running", running.dtype, len(mean),
               (*view(running), mean, inv_std, len(mean), float(eps)))


def batchnorm_forward(gpu: Launching, x: Array, mean: Array, inv_std: Array, w: Array, b: Array,
                      out: Array) -> None:
    weights = (_weights(gpu, w, wide_type(x)), _weights(gpu, b, wide_type(x)))
    for_shares(gpu, "batchnorm_forward", (x, out), (mean, inv_std, *weights))


def batchnorm_gradients(gpu: Launching, moments: Array, w: Array, sums: Array, db: Array | None,
                        dw: Array | None) -> None:
    # Kernels do not accept None: an array to ignore takes its place.
    written = (w, w, 0) if db is None or dw is None else (db, dw, 1)
    gpu.launch("batchnorm_gradients", w.dtype, len(w),
               (moments, _weights(gpu, w, w.dtype), sums, *written, len(w)))


def batchnorm_backward(gpu: Launching, x: Array, dy: Array, mean: Array, inv_std: Array, w: Array,
                       sums: Array, count: int, dx: Array) -> None:
    more = (mean, inv_std, _weights(gpu, w, wide_type(x)), *view(sums), float(count))
    for_shares(gpu, "batchnorm_backward", (x, dy, dx), more)
