"""Losses on a GPU: one block of threads per sample."""

from __future__ import annotations

import cupy as cp
import numpy as np

from hpcpar.kernels.cupy_launch import Launcher, contiguous, view
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array


def softmax_cross_entropy(launch: Launcher, x: Array, labels: Array, scale: float, dx: Array,
                          sums: Array) -> None:
    """See `Backend.softmax_cross_entropy`."""
    samples, classes = x.shape
    if x.size == 0:
        sums.fill(0)
        return
    by_sample = cp.empty((2, samples), np.float64)
    args = (*view(x), contiguous(labels, np.int64), *view(dx), *by_sample, samples, classes,
            float(scale))
    launch("softmax_cross_entropy", x.dtype, samples * THREADS, args)
    sums[...] = by_sample.sum(axis=1)


def logistic_cross_entropy(launch: Launcher, x: Array, labels: Array, first_class: int,
                           scale: float, dx: Array, sums: Array) -> None:
    """See `Backend.logistic_cross_entropy`."""
    samples, classes = x.shape
    if x.size == 0:
        sums.fill(0)
        return
    by_sample = cp.empty(samples, np.float64)
    args = (*view(x), contiguous(labels, np.int64), *view(dx), by_sample, samples, classes,
            first_class, float(scale))
    launch("logistic_cross_entropy", x.dtype, samples * THREADS, args)
    sums[0] = by_sample.sum()


def mean_squared_error(launch: Launcher, x: Array, targets: Array, scale: float, dx: Array,
                       sums: Array) -> None:
    """See `Backend.mean_squared_error`."""
    samples, outputs = x.shape
    if x.size == 0:
        sums.fill(0)
        return
    by_sample = cp.empty(samples, np.float64)
    args = (*view(x), *view(cp.asarray(targets, x.dtype)), *view(dx), by_sample, samples, outputs,
            float(scale))
    launch("mean_squared_error", x.dtype, samples * THREADS, args)
    sums[0] = by_sample.sum()
