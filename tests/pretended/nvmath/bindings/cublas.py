"""Matrix products with cuBLAS's arguments, computed with NumPy behind the work of the stream.

Unlike CuPy's, they may be captured, if their workspace is there before.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import ml_dtypes
import numpy as np
from cupy.cuda import streams

_TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64), 14: np.dtype(ml_dtypes.bfloat16)}
#: By handle: its stream, and the address and bytes of its workspace.
_handles: dict[int, tuple[streams.Stream, int, int]] = {}


class ComputeType(IntEnum):
    COMPUTE_32F = 68
    COMPUTE_64F = 70
    COMPUTE_32F_FAST_TF32 = 77


class Math(IntEnum):
    DEFAULT_MATH = 0
    DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class cuBLASError(RuntimeError):
    pass


def create() -> int:
    streams.require_no_capture("cudaMalloc")
    _handles[len(_handles) + 1] = streams.Stream.null, 0, 0
    return len(_handles)


def set_stream(handle: int, stream: int) -> None:
    """Use a stream. As in cuBLAS, this takes the workspace away."""
    _handles[handle] = streams.stream_of(stream), 0, 0


def set_math_mode(handle: int, mode: int) -> None:
    """Accept the modes that change nothing here: sums are never bfloat16."""
    assert handle in _handles and Math(mode) is Math.DISALLOW_REDUCED_PRECISION_REDUCTION


def set_workspace(handle: int, workspace: int, size_bytes: int) -> None:
    _handles[handle] = _handles[handle][0], workspace, size_bytes


def gemm_ex(handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int,
            atype: int, lda: int, b: int, btype: int, ldb: int, beta: int, c: int, ctype: int,
            ldc: int, compute_type: int, algo: int) -> None:
    gemm_strided_batched_ex(handle, transa, transb, m, n, k, alpha, a, atype, lda, 0, b, btype, ldb,
                            0, beta, c, ctype, ldc, 0, 1, compute_type, algo)


def gemm_strided_batched_ex(
        handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int,
        atype: int, lda: int, stride_a: int, b: int, btype: int, ldb: int, stride_b: int, beta: int,
        c: int, ctype: int, ldc: int, stride_c: int, batch_count: int, compute_type: int,
        algo: int) -> None:
    """Submit c = op(a) op(b), of matrices in columns."""
    _require(atype == btype and algo == -1 and min(m, n, k, batch_count) >= 1)
    _require(ctype == atype or (atype, ctype) == (14, 0))
    _require(compute_type in {0: (68, 77), 1: (70,), 14: (68,)}[atype])
    dtype = _TYPES[atype]
    factors = np.dtype(np.float64 if atype == 1 else np.float32)
    _require(float(_memory(alpha, factors, (1,), (1,))[0]) == 1)
    _require(float(_memory(beta, factors, (1,), (1,))[0]) == 0)
    stream, workspace, size_bytes = _handles[handle]
    _require(workspace > 0 and size_bytes > 0)

    def columns(at: int, turned: int, rows: int, count: int, ld: int, apart: int,
                dtype: np.dtype = dtype) -> np.ndarray:
        """A view [batch, rows, count]."""
        _require(ld >= (count if turned else rows))
        steps = (apart, ld, 1) if turned else (apart, 1, ld)
        return _memory(at, dtype, (batch_count, rows, count), steps)

    left, right = columns(a, transa, m, k, lda, stride_a), columns(b, transb, k, n, ldb, stride_b)
    out = columns(c, 0, m, n, ldc, stride_c, _TYPES[ctype])

    def multiply() -> None:
        if atype == 14:
            out[...] = np.matmul(left.astype(np.float32), right.astype(np.float32))
        else:
            np.matmul(left, right, out=out)

    if stream.is_capturing():
        stream.submit(multiply)
    else:  # at once, because the operands may not live longer
        stream.flush()
        multiply()


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise cuBLASError("CUBLAS_STATUS_INVALID_VALUE")


def _memory(at: int, dtype: np.dtype, shape: tuple[int, ...],
            steps: tuple[int, ...]) -> np.ndarray:
    items = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    raw = (ctypes.c_char * (items * dtype.itemsize)).from_address(at)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(raw, dtype), shape, [step * dtype.itemsize for step in steps])
