"""What CuPy sees of this node's GPUs."""

from __future__ import annotations

from typing import Any

import cupy as cp


def facts() -> dict[str, Any]:
    """CuPy's version, the visible devices, and NCCL's version (empty where CuPy has none)."""
    runtime = cp.cuda.runtime
    count = runtime.getDeviceCount() if cp.cuda.is_available() else 0
    names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    try:
        from cupy.cuda import nccl

        version = str(nccl.get_version())
    except (ImportError, AttributeError, RuntimeError):
        version = ""
    return {"cupy": cp.__version__, "devices": names, "nccl": version}
