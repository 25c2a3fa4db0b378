"""CUDA C modules, compiled for the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cuda import current_stream
from .cuda.function import CPointer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cuda_cpu


class RawModule:
    """A compiled source; its kernels run with one thread, when their stream gets to them."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        real = next(o.removeprefix("-DREAL=") for o in options if o.startswith("-DREAL="))
        self._kernels = cuda_cpu.library(code, real)

    def get_function(self, name: str) -> Callable[..., None]:
        def function(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]) -> None:
            args = tuple(arg.value() if isinstance(arg, CPointer) else arg for arg in args)
            current_stream().submit(lambda: cuda_cpu.launch(self._kernels, name, (1,), (1,), args))

        return function
