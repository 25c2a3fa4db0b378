"""Elementwise operations on a GPU: activations, dropout masks and local response normalization."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import cupy as cp

from hpcpar.kernels.cupy_launch import Launching, merge_dims, strides, view, volume
from hpcpar.kernels.interface import ACTIVATIONS, Array
from hpcpar.kernels.numbers import key_argument


def each(gpu: Launching, kernel: str, arrays: tuple[Array, ...], numbers: tuple[Any, ...],
         dtype: Any = None) -> None:
    """Launch a kernel on boxes of one shape; REAL is `dtype`, or else their type."""
    if arrays[0].size == 0:
        return
    shape, steps = merge_dims(arrays[0].shape, *map(strides, arrays))
    args = (*arrays, *shape, *itertools.chain(*steps), *numbers)
    gpu.launch(kernel, dtype or arrays[0].dtype, arrays[0].size, args)


def lrn_forward(gpu: Launching, x: Array, offset: int, size: int, alpha: float, beta: float,
                k: float, out: Array, scale: Array) -> None:
    geometry = (len(x), x.shape[1], out.shape[1], *volume(x).shape[2:], offset, size)
    args = (*(item for a in (x, out, scale) for item in view(volume(a))), *geometry,
            float(alpha), float(beta), float(k))
    gpu.launch("lrn_forward", x.dtype, out.size, args)


def lrn_backward(gpu: Launching, x: Array, out: Array, scale: Array, dy: Array, offset: int,
                 size: int, alpha: float, beta: float, dx: Array) -> None:
    geometry = (len(x), x.shape[1], out.shape[1], *volume(x).shape[2:], offset, size)
    args = (*(item for a in (x, out, scale, dy, dx) for item in view(volume(a))), *geometry,
            float(alpha), float(beta))
    gpu.launch("lrn_backward", x.dtype, dx.size, args)


def activation_forward(gpu: Launching, function: str, numbers: tuple[float, float], x: Array,
                       out: Array) -> None:
    each(gpu, "activation_forward", (x, out), _activation(function, numbers))


def activation_backward(gpu: Launching, function: str, numbers: tuple[float, float], kept: Array,
                        dy: Array, dx: Array) -> None:
    each(gpu, "activation_backward", (kept, dy, dx), _activation(function, numbers))


def dropout_mask(gpu: Launching, key: int, start: tuple[int, ...], shape: tuple[int, ...],
                 extent: tuple[int, ...], rate: float, out: Array) -> None:
    if out.size == 0:
        return
    global_strides = tuple(math.prod(extent[axis + 1 :]) for axis in range(len(extent)))
    if tuple(out.shape) != tuple(shape):
        # `out` is the flattened block, with the same elements in row-major order.
        if out.flags.c_contiguous:
            dropout_mask(gpu, key, start, shape, extent, rate, out.reshape(shape))
        else:
            block = cp.empty(shape, out.dtype)
            dropout_mask(gpu, key, start, shape, extent, rate, block)
            out[...] = block.reshape(out.shape)
        return
    first = sum(map(operator.mul, start, global_strides))
    keep = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    box, (out_steps, steps) = merge_dims(tuple(shape), strides(out), global_strides)
    args = (out, *box, *out_steps, *steps, first, *key_argument(key), float(rate), keep)
    gpu.launch("dropout_mask", out.dtype, out.size, args)


def _activation(function: str, numbers: tuple[float, float]) -> tuple[float, ...]:
    """A function's number and its parameters."""
    return tuple(map(float, (ACTIVATIONS.index(function), *numbers)))
