"""Weight updates on cache-sized blocks from `Backend.blocks`."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import Scratch


def sgd_update(scratch: Scratch, w: Array, grad: Array, velocity: Array | None, rate: float,
               momentum: float, decay: float) -> None:
    step = np.multiply(w, decay, out=scratch.get("step", w.shape, w.dtype))
    step += grad
    step *= -rate
    if velocity is not None:
        velocity *= momentum
        step = np.add(velocity, step, out=velocity)
    w += step


def adam_update(scratch: Scratch, w: Array, grad: Array, first: Array, second: Array, rate: float,
                beta1: float, beta2: float, eps: float, step: float, decay: float,
                decoupled: float = 0.0) -> None:
    if decoupled:
        w *= 1 - rate * decoupled
    gradient = np.multiply(w, decay, out=scratch.get("step", w.shape, w.dtype))
    gradient += grad
    part = np.multiply(gradient, 1 - beta1, out=scratch.get("part", w.shape, w.dtype))
    first *= beta1
    first += part
    gradient *= gradient
    gradient *= 1 - beta2
    second *= beta2
    second += gradient
    # The divisor overwrites the gradient.
    np.sqrt(second, out=gradient)
    gradient *= 1 / math.sqrt(1 - beta2**step)
    gradient += eps
    np.divide(first, gradient, out=part)
    part *= rate / (1 - beta1**step)
    w -= part
