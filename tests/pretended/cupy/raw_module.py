"""CUDA C modules, compiled for the CPU."""

from __future__ import annotations

import ctypes
import sys
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .cuda import current_stream, driver

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cuda_cpu


class RawModule:
    """A compiled source; its kernels run with one thread, when their stream gets to them."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        real = next(o.removeprefix("-DREAL=") for o in options if o.startswith("-DREAL="))
        self._kernels = cuda_cpu.library(code, real)

    def get_function(self, name: str) -> RawKernel:
        return RawKernel(self._kernels, name)


class RawKernel:
    """A kernel of a module."""

    def __init__(self, kernels: ctypes.CDLL, name: str) -> None:
        self._kernels, self._name = kernels, name

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...],
                 args: tuple[Any, ...]) -> None:
        current_stream().submit(
            lambda: cuda_cpu.launch(self._kernels, self._name, (1,), (1,), args))

    @cached_property
    def kernel(self) -> Function:
        """The kernel for the driver."""
        count = getattr(self._kernels, f"cuda_cpu_count_{self._name}")()
        one = (ctypes.c_uint * 3)(1, 1, 1)
        entry = getattr(self._kernels, f"cuda_cpu_{self._name}")
        return Function(driver.add_kernel(lambda params: entry(one, one, params), count))


class Function(NamedTuple):
    """A kernel for the driver."""

    ptr: int
