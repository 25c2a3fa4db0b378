"""CUDA C kernels compiled as C++ against ``cuda_cpu.h``, to run on the CPU."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parent
#: Options of g++. A misaligned access, which is an error on a GPU but not on most CPUs, ends the
#: process with a signal.
OPTIONS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter",
           "-Wno-unknown-pragmas", "-shared", "-fPIC",
           "-pthread", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", f"-I{TESTS}")


@cache
def missing() -> str:
    """Why this machine cannot compile kernels; empty if it can."""
    if shutil.which("g++") is None:
        return "no g++"
    done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-include", "barrier", "-xc++",
                           "/dev/null"], capture_output=True)
    return "g++ does not support C++20" if done.returncode else ""


@cache
def library(code: str, real: str) -> ctypes.CDLL:
    """The kernels of a source with ``REAL`` = `real`, compiled once per machine.

    Raises
    ------
    RuntimeError
        The compiler reports an error or a warning.
    """
    names = re.findall(r"^KERNEL (\w+)\(", code, re.MULTILINE)
    text = "\n".join(['#include "cuda_cpu.h"', code,
                      *(f"CUDA_CPU_ENTRY({name})" for name in names)])
    header = (TESTS / "cuda_cpu.h").read_text(encoding="utf-8")
    key = hashlib.sha256("\0".join((text, header, real, *OPTIONS)).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"hpcpar-cuda-cpu-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path, source = folder / f"{key}.so", folder / f"{key}.cpp"
    with open(folder / f"{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            source.write_text(text)
            part = path.with_suffix(".part")
            done = subprocess.run(["g++", *OPTIONS, f"-DREAL={real}", str(source), "-o", part],
                                  capture_output=True, text=True)
            if done.returncode or "warning" in done.stderr:
                raise RuntimeError(done.stderr)
            part.rename(path)
    return ctypes.CDLL(str(path))


def launch(kernels: ctypes.CDLL, name: str, grid: tuple[int, ...], block: tuple[int, ...],
           args: tuple[Any, ...]) -> None:
    """Launch a kernel as CuPy does: arrays as pointers, ints with 64 bits, floats as double."""
    values: list[Any] = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            values.append(ctypes.c_void_p(arg.ctypes.data))
        elif isinstance(arg, np.uint64):
            values.append(ctypes.c_uint64(int(arg)))
        elif isinstance(arg, float):
            values.append(ctypes.c_double(arg))
        else:
            assert isinstance(arg, int | np.int64), type(arg)
            values.append(ctypes.c_int64(int(arg)))
    addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    shapes = [(ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block)]
    getattr(kernels, f"cuda_cpu_{name}")(*shapes, addresses)
