"""The GPU of a process."""

from __future__ import annotations

import cupy as cp
import numpy as np
from cupy._core import _routines_linalg

from hpcpar.errors import InputError
from hpcpar.kernels.interface import MathMode


def select_device(local_rank: int) -> int:
    """Select a visible GPU by the rank on the node; check the CUDA libraries; return its number.

    Raises
    ------
    InputError
        No GPU is visible, or a CUDA library is missing.
    """
    try:
        count = cp.cuda.runtime.getDeviceCount() if cp.cuda.is_available() else 0
    except cp.cuda.runtime.CUDARuntimeError:
        count = 0
    if count == 0:
        raise InputError("--device gpu: no GPU is visible to this process; run on a node with a "
                         "GPU, or use --device cpu")
    device = local_rank % count
    try:
        cp.cuda.Device(device).use()
        # The first use loads the compiler and cuBLAS, so their errors surface before the run.
        probe = cp.ones((2, 3), np.float32)
        float(cp.matmul(probe, probe.T + 1)[0, 0])
    except (ImportError, RuntimeError, OSError, MemoryError,
            cp.cuda.compiler.CompileException) as err:
        reason = " ".join(str(err).split()) or type(err).__name__
        raise InputError(f"--device gpu: GPU {device} cannot be used ({reason}); fix the CUDA "
                         "installation, or use --device cpu") from err
    return device


def set_matmul_math(math: MathMode) -> None:
    """Set the precision of float32 matrix products in this process.

    CuPy has no public function for this. Its default comes from the environment (CUPY_TF32).
    """
    compute_type = (_routines_linalg.COMPUTE_TYPE_TF32 if math is MathMode.TF32 else
                    _routines_linalg.COMPUTE_TYPE_FP32)
    cp._core.set_compute_type(np.float32, compute_type)
