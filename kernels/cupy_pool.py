"""Pooling on a GPU, by kernels for volumes. An image is a volume with one plane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cupy as cp

from hpcpar.kernels.bfloat16 import wide_type
from hpcpar.kernels.cupy_launch import Launching, contiguous, three, view, volume
from hpcpar.kernels.geometry import PoolSpec
from hpcpar.kernels.interface import Array


def _geometry(x: Array, out: Array, spec: PoolSpec) -> tuple[int, ...]:
    """Arguments of the GEOMETRY macro."""
    before = three([pad[0] for pad in spec.pads], 0)
    return (*volume(x).shape, *volume(out).shape[2:], *three(spec.kernel, 1),
            *three(spec.stride, 1), *before)


def _views(*arrays: Array) -> tuple[Any, ...]:
    return tuple(item for array in arrays for item in view(volume(array)))


def _factors(scales: Sequence[Array], dtype: Any) -> tuple[Array, ...]:
    """One factor per output along each axis of a volume."""
    factors = tuple(contiguous(scale, dtype) for scale in scales)
    return factors if len(factors) == 3 else (cp.ones(1, dtype), *factors)


def maxpool_forward(gpu: Launching, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
    gpu.launch("maxpool_forward", x.dtype, out.size,
               (*_views(x, out, argmax), *_geometry(x, out, spec)))


def maxpool_backward(gpu: Launching, dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
    gpu.launch("maxpool_backward", dx.dtype, dx.size,
               (*_views(dy, argmax, dx), *_geometry(dx, dy, spec)))


def avgpool_forward(gpu: Launching, x: Array, spec: PoolSpec, scales: Sequence[Array],
                    out: Array) -> None:
    gpu.launch("avgpool_forward", x.dtype, out.size,
               (*_views(x), *_factors(scales, wide_type(x)), *_views(out),
                *_geometry(x, out, spec)))


def avgpool_backward(gpu: Launching, dy: Array, spec: PoolSpec, scales: Sequence[Array],
                     dx: Array) -> None:
    gpu.launch("avgpool_backward", dx.dtype, dx.size,
               (*_views(dy), *_factors(scales, wide_type(dx)), *_views(dx),
                *_geometry(dx, dy, spec)))


def global_avgpool_forward(x: Array, out: Array) -> None:
    if x.size:
        out[...] = x.mean(axis=tuple(range(2, x.ndim)))
    else:
        out.fill(0)


def global_avgpool_backward(dy: Array, dx: Array) -> None:
    if dx.size:
        dx[...] = (dy * (1 / math.prod(dx.shape[2:]))).reshape(*dy.shape, *(1,) * (dx.ndim - 2))
