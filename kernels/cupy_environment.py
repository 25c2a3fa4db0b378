"""The GPUs of this node, and the versions of CuPy and NCCL."""

from __future__ import annotations

from typing import Any

import cupy as cp

from hpcpar.kernels.cupy_nccl import nccl_version


def environment() -> dict[str, Any]:
    """Version of CuPy, names of the visible GPUs, and version of NCCL (empty if it is missing)."""
    runtime = cp.cuda.runtime
    count = runtime.getDeviceCount() if cp.cuda.is_available() else 0
    names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    return {"cupy": cp.__version__, "devices": names, "nccl": nccl_version()}
