"""Kernels on bfloat16 arrays, for mixed precision.

A kernel that does not take bfloat16 arrays itself gets float32 copies of them, and each of its
results is rounded once when it is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any, cast

import ml_dtypes
import numpy as np

from hpcpar.kernels.bound import Bound
from hpcpar.kernels.interface import Array, Backend

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: Parameters of kernels that they write, if they are bfloat16.
_RESULTS = ("out", "dx")
#: The kernels that may get bfloat16 arrays, each with the other parameters that it writes.
_KERNELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("accumulate", "activation_backward", "activation_forward", "add", "avgpool_backward",
         "avgpool_forward", "batchnorm_backward", "batchnorm_forward", "channel_moments",
         "channel_moments_backward", "conv_backward_data", "conv_backward_weight", "conv_forward",
         "copy", "dropout_mask", "gemm", "global_avgpool_backward", "global_avgpool_forward",
         "global_maxpool_backward", "global_maxpool_forward", "image_products", "lrn_backward",
         "maxpool_backward", "maxpool_forward", "multiply", "normalize", "sum_samples"), ()),
    "add_bias": ("y",), "lrn_forward": ("scale",), "scale": ("x",),
}


def is_half(array: Array) -> bool:
    """True for a bfloat16 array."""
    return bool(getattr(array, "dtype", None) == BFLOAT16)


def wide_type(array: Array) -> np.dtype[Any]:
    """The type in which kernels compute an array: float32 for bfloat16, else its own."""
    return np.dtype(np.float32) if is_half(array) else array.dtype


def widened(backend: Backend, array: Array) -> Array:
    """A contiguous float32 copy of a bfloat16 array."""
    wide = backend.empty(array.shape, np.float32)
    backend.copy(array, wide)
    return wide


def widening(backend: Backend, mixed: bool) -> Backend:
    """The backend; if activations are bfloat16 (`mixed`), with kernels that take them."""
    return cast(Backend, _Widening(backend)) if mixed else backend


class _Widening:
    """All of a backend's attributes; kernels are wrapped unless they are `bfloat16_kernels`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name in _KERNELS and name not in self._backend.bfloat16_kernels:
            found = partial(on_copies, self._backend, name, found)
        setattr(self, name, found)
        return found

    def bind(self, kernel: str, *args: Any, **options: Any) -> Bound:
        """As `Backend.bind`."""
        if kernel in self._backend.bfloat16_kernels or not any(map(is_half, args)):
            return self._backend.bind(kernel, *args, **options)
        call = partial(getattr(self, kernel), *args, **options)
        return Bound(kernel, args, lambda: call)


def on_copies(backend: Backend, name: str, kernel: Callable[..., None], *args: Any,
              **options: Any) -> None:
    """Call a kernel with float32 copies, and round its results."""
    written: list[tuple[Array, Array]] = []
    names = _parameters(name)
    given = list(args)
    for i, array in enumerate(given):
        if is_half(array):
            given[i] = widened(backend, array)
            if names[i] in _RESULTS or names[i] in _KERNELS[name]:
                written.append((given[i], array))
    kernel(*given, **options)
    for wide, array in written:
        backend.copy(wide, array)


@cache
def _parameters(kernel: str) -> tuple[str, ...]:
    """The names of a kernel's parameters."""
    return tuple(signature(getattr(Backend, kernel)).parameters)[1:]
