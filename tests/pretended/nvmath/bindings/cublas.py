"""Matrix products with cuBLAS's arguments, computed with NumPy behind the work of the stream.

Unlike CuPy's, they may be captured, if their workspace is there before.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np
from cupy.cuda import streams

_TYPES = {0: np.dtype(np.float32), 1: np.dtype(np.float64)}
#: By handle: its stream, and the address and bytes of its workspace.
_handles: dict[int, tuple[streams.Stream, int, int]] = {}


class ComputeType(IntEnum):
    COMPUTE_32F = 68
    COMPUTE_64F = 70
    COMPUTE_32F_FAST_TF32 = 77


class cuBLASError(RuntimeError):
    pass


def create() -> int:
    streams.require_no_capture("cudaMalloc")
    _handles[len(_handles) + 1] = streams.Stream.null, 0, 0
    return len(_handles)


def set_stream(handle: int, stream: int) -> None:
    """Use a stream. As in cuBLAS, this takes the workspace away."""
    _handles[handle] = streams.stream_of(stream), 0, 0


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
    _require(atype == btype == ctype and algo == -1 and min(m, n, k, batch_count) >= 1)
    _require(compute_type in ((68, 77) if ctype == 0 else (70,)))
    dtype = _TYPES[ctype]
    _require(float(_memory(alpha, dtype, (1,), (1,))[0]) == 1)
    _require(float(_memory(beta, dtype, (1,), (1,))[0]) == 0)
    stream, workspace, size_bytes = _handles[handle]
    _require(workspace > 0 and size_bytes > 0)

    def columns(at: int, turned: int, rows: int, count: int, ld: int, apart: int) -> np.ndarray:
        """A view [batch, rows, count]."""
        _require(ld >= (count if turned else rows))
        steps = (apart, ld, 1) if turned else (apart, 1, ld)
        return _memory(at, dtype, (batch_count, rows, count), steps)

    left, right = columns(a, transa, m, k, lda, stride_a), columns(b, transb, k, n, ldb, stride_b)
    out = columns(c, 0, m, n, ldc, stride_c)
    if stream.is_capturing():
        stream.submit(lambda: np.matmul(left, right, out=out))
    else:  # at once, because the operands may not live longer
        stream.flush()
        np.matmul(left, right, out=out)


def _require(is_valid: bool) -> None:
    if not is_valid:
        raise cuBLASError("CUBLAS_STATUS_INVALID_VALUE")


def _memory(at: int, dtype: np.dtype, shape: tuple[int, ...],
            steps: tuple[int, ...]) -> np.ndarray:
    items = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    raw = (ctypes.c_char * (items * dtype.itemsize)).from_address(at)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(raw, dtype), shape, [step * dtype.itemsize for step in steps])
