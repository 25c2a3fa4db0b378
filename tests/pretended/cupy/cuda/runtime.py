"""The CUDA runtime: devices, and waiting for all of them."""

from __future__ import annotations

import os
from typing import Any

cudaDevAttrClockRate = 13
#: How often the host has waited for the device, or asked how far it is.
host_waits = 0


streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2


class CUDARuntimeError(RuntimeError):
    pass


def error(name: str, detail: str) -> CUDARuntimeError:
    return CUDARuntimeError(f"{name}: {detail}")


def getDeviceCount() -> int:
    return int(os.environ.get("PRETENDED_GPUS", "8"))


def getDeviceProperties(device: int) -> dict[str, Any]:
    return {"name": b"pretended GPU", "totalGlobalMem": 1 << 34, "major": 9, "minor": 0,
            "multiProcessorCount": 1}


def deviceGetAttribute(attribute: int, device: int) -> int:
    """The clock rate (kHz), the only known attribute."""
    return {cudaDevAttrClockRate: 1_000_000}[attribute]


def deviceGetPCIBusId(device: int) -> str:
    return f"0000:{device:02x}:00.0"


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def memGetInfo() -> tuple[int, int]:
    return 1 << 33, 1 << 34


def deviceSynchronize() -> None:
    global host_waits
    from .streams import advance_all, require_no_capture

    require_no_capture("a wait for the device")
    host_waits += 1
    while not advance_all():
        os.sched_yield()
