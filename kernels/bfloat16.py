"""Kernels on bfloat16 and float16 arrays, for mixed precision.

A kernel that does not take such arrays itself gets float32 copies of them, and each of its
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

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
#: Kernels that NumPy itself computes in 16 bits.
COPIES = frozenset(("copy", "accumulate"))
#: Parameters of kernels that they write, if they have 16 bits.
_RESULTS = ("out", "dx")
#: The kernels that may get such arrays, each with the other parameters that it writes.
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
    """True for a bfloat16 or float16 array."""
    return getattr(array, "dtype", None) in (BFLOAT16, FLOAT16)


def wide_type(array: Array) -> np.dtype[Any]:
    """The type in which kernels compute an array: float32 for 16 bits, else its own."""
    return np.dtype(np.float32) if is_half(array) else array.dtype


def widened(backend: Backend, array: Array) -> Array:
    """A contiguous float32 copy of a bfloat16 or float16 array."""
    wide = backend.empty(array.shape, np.float32)
    backend.copy(array, wide)
    return wide


def widening(backend: Backend, item_dtype: str) -> Backend:
    """The backend; if activations are bfloat16 or float16, with kernels that take them."""
    kernels = {BFLOAT16: backend.bfloat16_kernels, FLOAT16: COPIES}.get(np.dtype(item_dtype))
    return backend if kernels is None else cast(Backend, _Widening(backend, kernels))


class _Widening:
    """All of a backend's attributes; kernels are wrapped unless they `take` 16 bits."""

    def __init__(self, backend: Backend, take: frozenset[str]) -> None:
        self._backend, self._take = backend, take

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name in _KERNELS and name not in self._take:
            found = partial(on_copies, self._backend, name, found)
        setattr(self, name, found)
        return found

    def bind(self, kernel: str, *args: Any, **options: Any) -> Bound:
        """As `Backend.bind`."""
        if kernel in self._take or not any(map(is_half, args)):
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
