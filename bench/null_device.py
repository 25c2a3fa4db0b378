"""A GPU whose every call returns at once: the fake GPU of the tests without its work.

`install` must run before anything imports CuPy. Arrays exist, but no kernel writes them. Each
operation is counted by kind. Arguments of kernels that are not prepared are packed one by one, as
CuPy packs them.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

#: Operations since the start, by kind.
counts: Counter[str] = Counter()
#: Kinds of operations that launch kernels.
LAUNCHES = ("kernels", "convolutions", "products", "array operations")


def install() -> None:
    """Replace CuPy and cuDNN by modules that only count."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pretended"))
    import cudnn
    import cupy
    from cupy.cuda import driver, streams
    from nvmath.bindings import cublas

    _count_streams(streams)
    _count_arrays(cupy)
    cupy.RawModule.__init__ = lambda self, code, options: None
    cupy.RawModule.get_function = lambda self, name: _Kernel()
    driver.launchKernel = _counting("kernels")
    cudnn.pygraph.execute_plan_at_index = _convolve
    cupy.cuda.Graph.launch = _counting("graphs")
    for name in ("gemm_ex", "gemm_strided_batched_ex"):
        setattr(cublas, name, _counting("products"))


#: Results of reshapes that copy.
_copies: dict[Any, Any] = {}


def _reshape(self: Any, *shape: Any) -> Any:
    """A view where there is one; a copy is an operation."""
    if self.flags.c_contiguous:
        return np.ndarray.reshape(self, *shape)
    key = (self.ctypes.data, self.shape, self.strides, shape)
    if key not in _copies:
        _copies[key] = np.ndarray.reshape(self, *shape)
    if not np.may_share_memory(_copies[key], self):
        counts["array operations"] += 1
    return _copies[key]


def _counting(kind: str, result: Any = None) -> Callable[..., Any]:
    def method(*args: Any, **options: Any) -> Any:
        counts[kind] += 1
        return result

    return method


def _count_streams(streams: Any) -> None:
    streams.Stream.submit = lambda self, work: None
    streams.Stream.synchronize = _counting("waits")
    streams.Event.record = _counting("events")
    streams.Event.synchronize = _counting("waits")
    streams.Event.done = property(_counting("waits", True))
    cuda: Any = sys.modules["cupy.cuda"]
    cuda.get_elapsed_time = lambda start, end: 0.0
    cuda.runtime.deviceSynchronize = _counting("waits")


def _count_arrays(cupy: Any) -> None:
    results: dict[Any, Any] = {}
    compute = cupy._call

    def described(value: Any) -> Any:
        return (value.shape, value.dtype.num) if isinstance(value, np.ndarray) else value

    def call(function: Any, *args: Any, **options: Any) -> Any:
        """The result of an operation: an old one where the shapes were seen before."""
        if function is np.empty:
            return compute(function, *args, **options)
        counts["array operations"] += 1
        out = options.get("out")
        if out is not None:
            return out[0] if isinstance(out, tuple) else out
        key = (function, *map(described, args), *options.items())
        if key not in results:
            results[key] = compute(function, *args, **options)
        return results[key]

    def read(self: Any, out: np.ndarray | None = None) -> np.ndarray:
        counts["waits"] += 1
        counts["copies"] += 1
        return self.view(np.ndarray) if out is None else out

    def write(self: Any, host: np.ndarray) -> None:
        counts["waits"] += 1
        counts["copies"] += 1

    cupy._call = call
    cupy.ndarray.get, cupy.ndarray.set = read, write
    cupy.ndarray.reshape = _reshape
    cupy.ndarray.__setitem__ = _counting("array operations")
    for way in ("copy_to_host_async", "copy_from_host_async"):
        setattr(cupy.MemoryPointer, way, _counting("copies"))


class _Kernel:
    """A kernel, and its handle for the driver."""

    ptr = 1

    @property
    def kernel(self) -> _Kernel:
        return self

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...],
                 args: tuple[Any, ...]) -> None:
        counts["kernels"] += 1
        packed: list[Any] = []
        for arg in args:
            if isinstance(arg, np.ndarray):
                packed.append(arg)
            elif isinstance(arg, float):
                packed.append(ctypes.c_double(arg))
            else:
                value = arg if isinstance(arg, int) else int(arg.view(np.int64))
                packed.append(ctypes.c_int64(value))


def _convolve(graph: Any, variant_pack: dict[int, int], workspace: int, index: int,
              handle: int | None = None) -> None:
    counts["convolutions"] += 1
    dict(variant_pack)
