"""Matrix products by BLAS, split into parts between which communication progresses."""

from __future__ import annotations

import math

import numpy as np

from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_blocks import blas_input, is_blas_matrix

#: Limits of the flops and bytes of a part: a few milliseconds on a core, which makes the overhead
#: of a BLAS call negligible.
PART_FLOPS, PART_BYTES = 1 << 29, 1 << 25
#: Rows per part that BLAS needs for its full flop rate.
MIN_ROWS = 128


def gemm(a: Array, b: Array, out: Array, *, transpose_a: bool = False, transpose_b: bool = False,
         tick: Tick | None = None) -> None:
    """See `Backend.gemm`; split by rows, or by columns if there are few rows, to call `tick`."""
    left, right = blas_input(a.T if transpose_a else a), blas_input(b.T if transpose_b else b)
    parts = _parts(left, right) if tick is not None else 1
    columns = out.shape[0] < MIN_ROWS * parts
    extent = out.shape[int(columns)]
    parts = min(parts, max(1, extent))
    for i in range(parts):
        part = slice(i * extent // parts, (i + 1) * extent // parts)
        if columns:
            _multiply(left, right[:, part], out[:, part])
        else:
            _multiply(left[part], right, out[part])
        if tick is not None and parts > 1:
            tick()


def _parts(left: Array, right: Array) -> int:
    """Number of parts within the limits of flops and bytes."""
    (m, k), n = left.shape, right.shape[1]
    n_bytes = (m * k + k * n + m * n) * left.itemsize
    return max(1, math.ceil(2 * m * k * n / PART_FLOPS), math.ceil(n_bytes / PART_BYTES))


def _multiply(left: Array, right: Array, out: Array) -> None:
    if is_blas_matrix(out):
        np.matmul(left, right, out=out)
    else:
        out[...] = left @ right
