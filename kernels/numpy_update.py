"""Weight updates, in blocks that stay in the cache between NumPy calls."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_blocks import Scratch, flat_blocks, ticking


def sgd_update(scratch: Scratch, w: Array, grad: Array, velocity: Array | None, rate: float,
               momentum: float, decay: float, tick: Tick | None = None) -> None:
    """See `Backend.sgd_update`."""
    arrays = (w, grad) if velocity is None else (w, grad, velocity)
    for w_part, g_part, *v_part in ticking(flat_blocks(*arrays), tick):
        step = np.multiply(w_part, decay, out=scratch.get("step", w_part.shape, w.dtype))
        step += g_part
        step *= -rate
        if v_part:
            v_part[0] *= momentum
            step = np.add(v_part[0], step, out=v_part[0])
        w_part += step


def adam_update(scratch: Scratch, w: Array, grad: Array, first: Array, second: Array, rate: float,
                beta1: float, beta2: float, eps: float, step: int, decay: float,
                tick: Tick | None = None) -> None:
    """See `Backend.adam_update`."""
    rate /= 1 - beta1**step
    spread = 1 / math.sqrt(1 - beta2**step)
    for w_part, g_part, m_part, v_part in ticking(flat_blocks(w, grad, first, second), tick):
        gradient = np.multiply(w_part, decay, out=scratch.get("step", w_part.shape, w.dtype))
        gradient += g_part
        part = np.multiply(gradient, 1 - beta1, out=scratch.get("part", w_part.shape, w.dtype))
        m_part *= beta1
        m_part += part
        gradient *= gradient
        gradient *= 1 - beta2
        v_part *= beta2
        v_part += gradient
        # The buffer of the gradient is reused for the divisor.
        np.sqrt(v_part, out=gradient)
        gradient *= spread
        gradient += eps
        np.divide(m_part, gradient, out=part)
        part *= rate
        w_part -= part
