"""Losses on a GPU: one thread block per sample."""

from __future__ import annotations

from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.cupy_launch import Launching, contiguous, view
from hpcpar.kernels.cupy_sources import THREADS
from hpcpar.kernels.interface import Array


def _loss(gpu: Launching, kernel: str, x: Array, truth: tuple[Any, ...], numbers: tuple[Any, ...],
          dx: Array, sums: Array) -> None:
    """Launch a kernel that writes dx and a value per sample for each of `sums`."""
    if x.size == 0:
        sums.fill(0)
        return
    by_sample = cp.empty((len(sums), len(x)), np.float64)
    args = (*view(x), *truth, *view(dx), *by_sample, *x.shape, *numbers)
    gpu.launch(kernel, x.dtype, len(x) * THREADS, args)
    sums[...] = by_sample.sum(axis=1)


def softmax_cross_entropy(gpu: Launching, x: Array, labels: Array, scale: float, dx: Array,
                          sums: Array) -> None:
    _loss(gpu, "softmax_cross_entropy", x, (contiguous(labels, np.int64),), (float(scale),), dx,
          sums)


def logistic_cross_entropy(gpu: Launching, x: Array, labels: Array, first_class: int,
                           scale: float, dx: Array, sums: Array) -> None:
    _loss(gpu, "logistic_cross_entropy", x, (contiguous(labels, np.int64),),
          (first_class, float(scale)), dx, sums[:1])


def mean_squared_error(gpu: Launching, x: Array, targets: Array, scale: float, dx: Array,
                       sums: Array) -> None:
    _loss(gpu, "mean_squared_error", x, view(cp.asarray(targets, x.dtype)), (float(scale),), dx,
          sums[:1])
