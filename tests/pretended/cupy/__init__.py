"""As much of CuPy as the GPU backend uses.

Mixing arrays of the host and of the device raises an error, as CuPy does.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from . import _core, cuda
from .cuda import current_stream, runtime
from .cuda.capture import allocate, refuse_cublas, refuse_host_copy
from .raw_module import RawModule

__all__ = ["RawModule", "_core", "asarray", "ascontiguousarray", "asnumpy", "cuda", "ndarray"]
__version__ = "14.0 (pretended)"


class MemoryPointer:
    """Address of an array, with the copies that follow a stream's order."""

    def __init__(self, array: ndarray) -> None:
        self._array = array
        self.ptr = int(array.__array_interface__["data"][0])

    def copy_to_host_async(self, host: int, size_bytes: int) -> None:
        self._copy(host, self.ptr, size_bytes)

    def copy_from_host_async(self, host: int, size_bytes: int) -> None:
        self._copy(self.ptr, host, size_bytes)

    def _copy(self, to: int, source: int, size_bytes: int) -> None:
        refuse_host_copy()
        kept = self._array
        current_stream().submit(lambda: (ctypes.memmove(to, source, size_bytes), kept))


class ndarray(np.ndarray):
    """An array in the pretended device's memory."""

    @property
    def data(self) -> MemoryPointer:  # type: ignore[override]
        return MemoryPointer(self)

    def __dlpack__(self, **options: Any) -> Any:
        """For PyTorch on the CPU, which works at once: the taker waits for the current stream."""
        current_stream().flush()
        return self.view(np.ndarray).__dlpack__(**options)

    def get(self, out: np.ndarray | None = None) -> np.ndarray:
        """A copy on the host. As in CuPy, an array with gaps enters and leaves the stream."""
        refuse_host_copy()
        runtime.host_waits += 1
        with nullcontext() if self.flags.c_contiguous else current_stream():
            current_stream().flush()
        host = np.empty(self.shape, self.dtype) if out is None else out
        host[...] = self.view(np.ndarray)
        return host

    def set(self, host: np.ndarray) -> None:
        """Overwrite with the host's values."""
        refuse_host_copy()
        assert type(host) is np.ndarray and host.flags.c_contiguous and host.dtype == self.dtype
        current_stream().flush()
        self.view(np.ndarray)[...] = host

    def reshape(self, *shape: Any, **options: Any) -> ndarray:
        out = super().reshape(*shape, **options)
        if self.size and not np.may_share_memory(*(a.view(np.ndarray) for a in (self, out))):
            out = _call(np.ndarray.reshape, self, *shape, **options)
        return out

    def __getitem__(self, key: Any) -> ndarray:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, np.ndarray) for k in keys):
            current_stream().flush()
        out = super().__getitem__(key)
        return out if isinstance(out, ndarray) else super().__getitem__((*keys, ...))

    def __setitem__(self, key: Any, value: Any) -> None:
        to, data = self.view(np.ndarray), _on_device(value)
        current_stream().submit(lambda: to.__setitem__(key, data))

    def fill(self, value: Any) -> None:
        self[...] = value

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _call(getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function is np.may_share_memory:
            return function(*map(_on_device, args))
        return _call(function, *args, **options)


def _on_device(value: Any) -> Any:
    """NumPy's view of what an operation takes: device arrays, and numbers."""
    if isinstance(value, ndarray):
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        return type(value)(_on_device(each) for each in value)
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError("Unsupported type <class 'numpy.ndarray'>: an array of the host")
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_wrapped, value))
    return np.asarray(value).view(ndarray) if isinstance(value, np.ndarray | np.generic) else value


def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """An operation of NumPy on device arrays, behind all work of the current stream.

    Memory of its own for the result is only known from the result: it is worked out at once. In a
    capture this result only has the right shape.
    """
    if any(function is f or getattr(function, "__self__", None) is f for f in _CUBLAS):
        refuse_cublas()
    if function in _WAITING:
        refuse_host_copy()
    out = options.get("out")
    work = functools.partial(function, *map(_on_device, args),
                             **{name: _on_device(value) for name, value in options.items()})
    if out is None:
        if current_stream().capture is None:
            current_stream().flush()
            return _wrapped(work())
        with np.errstate(all="ignore"):
            return _captured(work, work(), args)
    current_stream().submit(work)
    return out[0] if isinstance(out, tuple) else out


#: Operations that CuPy leaves to cuBLAS, and operations that wait for the device.
_CUBLAS = (np.matmul, np.dot, np.vdot, np.inner, np.outer, np.tensordot, np.einsum)
_WAITING = (np.bincount, np.nonzero, np.unique, np.argwhere)


def _captured(work: Callable[[], Any], found: Any, args: tuple[Any, ...]) -> Any:
    """The result of an operation in a capture: a view, or memory that every replay writes."""
    sources = [arg.view(np.ndarray) for arg in args if isinstance(arg, np.ndarray)]
    if not isinstance(found, np.ndarray | np.generic):
        raise TypeError(f"an operation with a result of type {type(found)} in a capture")
    if any(np.may_share_memory(found, source) for source in sources):
        return _wrapped(found)
    made = np.asarray(found)
    allocate(made)
    current_stream().submit(lambda: made.__setitem__(..., work()))
    return made.view(ndarray)


def _method(name: str) -> Callable[..., Any]:
    plain = getattr(np.ndarray, name)

    @functools.wraps(plain)
    def method(self: ndarray, *args: Any, **options: Any) -> Any:
        return _call(plain, self, *args, **options)

    return method


def _reading(name: str) -> Callable[[ndarray], Any]:
    """A method that brings a value to the host."""
    return lambda self: getattr(self.get(), name)()


for _name in ("sum", "mean", "max", "min", "argmax", "take", "copy", "astype", "ravel",
              "all", "any", "prod"):
    setattr(ndarray, _name, _method(_name))
for _name in ("item", "tolist", "tobytes", "__float__", "__int__", "__bool__"):
    setattr(ndarray, _name, _reading(_name))


def asarray(array: Any, dtype: Any = None) -> ndarray:
    """A device array, copied if it is the host's (in the order of the stream) or of another type.
    """
    if isinstance(array, ndarray):
        return array if dtype in (None, array.dtype) else array.astype(dtype)
    refuse_host_copy()
    staged = np.array(array, dtype)
    made = np.zeros_like(staged)
    current_stream().submit(lambda: np.copyto(made, staged))
    return made.view(ndarray)


def from_dlpack(tensor: Any) -> ndarray:
    """PyTorch's memory on the CPU; its work is done."""
    return np.from_dlpack(tensor).view(ndarray)


def ascontiguousarray(array: Any, dtype: Any = None) -> ndarray:
    made = asarray(array, dtype)
    return made if made.flags.c_contiguous else made.copy()


def asnumpy(array: ndarray, out: np.ndarray | None = None) -> np.ndarray:
    return array.get(out)


def __getattr__(name: str) -> Any:
    """A function of NumPy, on the device."""
    value = getattr(np, name)
    if not callable(value) or isinstance(value, type):
        return value
    return functools.partial(_call, value)
