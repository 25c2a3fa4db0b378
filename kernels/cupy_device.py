"""Choosing the GPU of a process."""

from __future__ import annotations

from collections.abc import Mapping

import cupy as cp
import numpy as np

from hpcpar.errors import InputError

#: Where launchers put a process's rank on its node. mpirun's own come first: inside a Slurm job its
#: processes also see the SLURM_LOCALID of the batch script, which is 0 for all of them.
LOCAL_RANK_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)


def local_rank(environ: Mapping[str, str]) -> int:
    """The rank of this process on its node as its launcher tells, 0 if none does."""
    for name in LOCAL_RANK_VARIABLES:
        value = environ.get(name, "")
        if value.isdecimal():
            return int(value)
    return 0


def select_device(environ: Mapping[str, str]) -> int:
    """Make this process use one of the visible GPUs, by its rank on the node, and check that the
    CUDA libraries work.

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
        raise InputError("--device gpu: no GPU is visible to this process; run on a node with a GPU, or use --device cpu")
    device = local_rank(environ) % count
    try:
        cp.cuda.Device(device).use()
        # The first use loads the compiler and cuBLAS; better here than in the middle of a run.
        probe = cp.ones((2, 3), np.float32)
        float(cp.matmul(probe, probe.T + 1)[0, 0])
    except (ImportError, RuntimeError, OSError, MemoryError,
            cp.cuda.compiler.CompileException) as err:
        reason = " ".join(str(err).split()) or type(err).__name__
        raise InputError(f"--device gpu: GPU {device} cannot be used ({reason}); mend the CUDA installation, or use --device cpu") from err
    return device
