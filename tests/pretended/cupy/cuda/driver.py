"""Launches by CUDA's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from .streams import stream_of

#: By the address of a kernel, less 1: a function that runs it with parameters, and their number.
_kernels: list[tuple[Callable[[ctypes.Array[ctypes.c_void_p]], None], int]] = []


def add_kernel(run: Callable[[ctypes.Array[ctypes.c_void_p]], None], parameters: int) -> int:
    """Register a kernel; returns its address."""
    _kernels.append((run, parameters))
    return len(_kernels)


def launchKernel(f: int, grid_x: int, grid_y: int, grid_z: int, block_x: int, block_y: int,
                 block_z: int, shared_bytes: int, stream: int, params: int, extra: int) -> None:
    """Launch a kernel; its parameters, of 64 bits each, are copied now."""
    assert grid_x > 0 and grid_y > 0 and block_x > 0 and not extra
    run, count = _kernels[f - 1]
    pointers = (ctypes.POINTER(ctypes.c_uint64) * count).from_address(params)
    words = (ctypes.c_uint64 * count)(*(pointer[0] for pointer in pointers))
    copies = (ctypes.c_void_p * count)(*(ctypes.addressof(words) + 8 * i for i in range(count)))
    stream_of(stream).submit(lambda: (run(copies), words)[0])
