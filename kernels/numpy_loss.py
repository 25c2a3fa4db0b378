"""Losses and their gradients, on small matrices of samples and classes."""

from __future__ import annotations

import numpy as np

from hpcpar.kernels.interface import Array


def softmax_cross_entropy(x: Array, labels: Array, scale: float, dx: Array, sums: Array) -> None:
    sums[:] = 0
    if x.size == 0:
        return
    counted = np.flatnonzero(labels >= 0)
    sums[1] = np.count_nonzero(x.argmax(axis=1)[counted] == labels[counted])
    shifted = x - x.max(axis=1, keepdims=True)
    picked = shifted[counted, labels[counted]].astype(np.float64)
    np.exp(shifted, out=shifted)
    total = shifted.sum(axis=1, keepdims=True)
    sums[0] = (np.log(total[counted, 0].astype(np.float64)) - picked).sum()
    shifted /= total
    shifted[counted, labels[counted]] -= 1
    np.multiply(shifted, scale, out=dx)
    dx[labels < 0] = 0


def logistic_cross_entropy(x: Array, labels: Array, first_class: int, scale: float, dx: Array,
                           sums: Array) -> None:
    sums[0] = 0
    if x.size == 0:
        return
    # log(1 + exp(x)) and the sigmoid are computed from exp(-|x|), which cannot overflow.
    small = np.exp(-np.abs(x))
    losses = np.maximum(x, 0)
    losses += np.log1p(small)
    gradient = np.where(x >= 0, 1, small) / (1 + small)
    local = labels - first_class
    n = np.flatnonzero((labels >= 0) & (local >= 0) & (local < x.shape[1]))
    losses[n, local[n]] -= x[n, local[n]]
    gradient[n, local[n]] -= 1
    losses[labels < 0] = 0
    gradient[labels < 0] = 0
    np.multiply(gradient, scale, out=dx)
    sums[0] = losses.sum(dtype=np.float64)


def mean_squared_error(x: Array, targets: Array, scale: float, dx: Array, sums: Array) -> None:
    difference = np.subtract(x, targets)
    difference[np.isnan(targets)] = 0
    np.multiply(difference, 2 * scale, out=dx)
    sums[0] = np.square(difference, dtype=np.float64).sum()
