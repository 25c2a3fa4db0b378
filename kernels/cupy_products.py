"""Matrix products on a GPU.

CuPy does not call cuBLAS on a stream that is captured (its issue 6290), so products call it through
NVIDIA's bindings, with a workspace that stays in place. Where the bindings are missing, CuPy
multiplies, and graphs leave these steps out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.bfloat16 import BFLOAT16, wide_type
from hpcpar.kernels.interface import Array, MathMode, address

#: (left, right, out): out = left @ right, of matrices or batches [batch, rows, columns].
Multiply = Callable[[Array, Array, Array], None]
#: cuBLAS's workspace on each stream; NVIDIA's recommendation for its largest cards.
_WORKSPACE_BYTES = 32 << 20
#: cudaDataType_t of the operands.
_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, BFLOAT16: 14}


def multiply_by_cupy(left: Array, right: Array, out: Array) -> None:
    """See `Multiply`."""
    if out.flags.c_contiguous:
        cp.matmul(left, right, out=out)
    else:
        out[...] = cp.matmul(left, right)


def products(math: MathMode) -> tuple[Multiply, str]:
    """The products, and the name of what computes them."""
    try:
        from nvmath.bindings import cublas

        made = CublasProducts(cublas, math)
    except (ImportError, RuntimeError):
        return multiply_by_cupy, "CuPy"
    return made, "cuBLAS"


class CublasProducts:
    """Products by cuBLAS: float32, float64, and bfloat16 with sums in float32, also as results.

    Parameters
    ----------
    cublas
        The module ``nvmath.bindings.cublas``.
    math
        Precision of float32 products.
    """

    def __init__(self, cublas: Any, math: MathMode) -> None:
        self._cublas = cublas
        kinds = cublas.ComputeType
        of_float32 = (kinds.COMPUTE_32F_FAST_TF32 if math is MathMode.TF32
                      else kinds.COMPUTE_32F)
        self._computes = {np.dtype(np.float32): int(of_float32),
                          np.dtype(np.float64): int(kinds.COMPUTE_64F),
                          BFLOAT16: int(kinds.COMPUTE_32F)}
        self._ones = {dtype: np.ones(1, dtype) for dtype in _TYPES}
        self._zeros = {dtype: np.zeros(1, dtype) for dtype in _TYPES}
        #: Parts of a sum are not rounded to bfloat16.
        self._mode = int(cublas.Math.DISALLOW_REDUCED_PRECISION_REDUCTION)
        #: By stream: cuBLAS's handle and its workspace.
        self._handles: dict[int, tuple[int, Array]] = {}
        self._handle()  # a missing library shows here

    def _handle(self) -> int:
        """The handle of the current stream."""
        stream = int(cp.cuda.get_current_stream().ptr)
        if stream not in self._handles:
            handle = int(self._cublas.create())
            workspace = cp.empty(_WORKSPACE_BYTES, np.uint8)
            self._cublas.set_math_mode(handle, self._mode)
            self._cublas.set_stream(handle, stream)
            self._cublas.set_workspace(handle, address(workspace), workspace.nbytes)
            self._handles[stream] = handle, workspace
        return self._handles[stream][0]

    def __call__(self, left: Array, right: Array, out: Array) -> None:
        """See `Multiply`."""
        if out.strides[-1] != out.itemsize or not _rows_are_apart(out):
            whole = cp.empty(out.shape, out.dtype)
            self(left, right, whole)
            out[...] = whole
            return
        (left, turn_left, left_ld), (right, turn_right, right_ld) = map(_operand, (left, right))
        factors, (rows, columns), depth = wide_type(left), out.shape[-2:], left.shape[-1]
        kind, result, compute = _TYPES[left.dtype], _TYPES[out.dtype], self._computes[left.dtype]
        one, zero = address(self._ones[factors]), address(self._zeros[factors])
        # cuBLAS reads rows as columns, so it multiplies the transposed matrices in reverse order.
        a, b, c = address(right), address(left), address(out)
        ldc = max(out.strides[-2] // out.itemsize, columns)
        head = (self._handle(), int(turn_right), int(turn_left), columns, rows, depth, one)
        if out.ndim == 2:
            self._cublas.gemm_ex(*head, a, kind, right_ld, b, kind, left_ld, zero, c, result, ldc,
                                 compute, -1)
        else:
            self._cublas.gemm_strided_batched_ex(
                *head, a, kind, right_ld, _apart(right), b, kind, left_ld, _apart(left), zero, c,
                result, ldc, _apart(out), len(out), compute, -1)


def _rows_are_apart(matrix: Array) -> bool:
    """Whether rows do not overlap: cuBLAS wants a row's distance to be at least its length."""
    rows, columns = matrix.shape[-2:]
    return rows == 1 or bool(matrix.strides[-2] >= columns * matrix.itemsize)


def _operand(matrix: Array) -> tuple[Array, bool, int]:
    """A matrix for cuBLAS, whether it has columns where cuBLAS expects rows, and their distance in
    items. A matrix without adjacent items is copied.
    """
    for turned, view in ((False, matrix), (True, matrix.swapaxes(-1, -2))):
        columns = view.shape[-1]
        if (columns == 1 or view.strides[-1] == matrix.itemsize) and _rows_are_apart(view):
            return matrix, turned, max(view.strides[-2] // matrix.itemsize, columns)
    return _operand(cp.ascontiguousarray(matrix))


def _apart(batch: Array) -> int:
    """Distance of a batch's matrices in items; 0 for one matrix that all share."""
    return int(batch.strides[0] // batch.itemsize) if batch.ndim == 3 else 0
