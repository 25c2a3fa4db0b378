"""Compilation and launch of the CUDA C kernels, and their arguments for strided arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import cupy as cp
import numpy as np
from cupy.cuda import driver, get_current_stream

from hpcpar.kernels import cupy_sources
from hpcpar.kernels.bfloat16 import BFLOAT16
from hpcpar.kernels.interface import Array, address

Call = Callable[[], None]
#: Limit of the blocks along a dimension of the grid (CUDA's limit for the second one). The kernels
#: loop over the rest of the work.
_MAX_BLOCKS = 65535
_MAX_DIMS = 5
#: C type of REAL by NumPy dtype; the dtype's name would be slow to look up.
_REALS = {BFLOAT16 if name == "bfloat16" else np.dtype(name): real
          for name, real in cupy_sources.REALS.items()}


def strides(array: Array) -> tuple[int, ...]:
    """Strides of an array in elements."""
    return _in_items(array.strides, array.itemsize)


@functools.lru_cache(maxsize=65536)
def _in_items(strides_bytes: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    return tuple(stride // item_bytes for stride in strides_bytes)


def view(array: Array) -> tuple[Any, ...]:
    """Arguments of a VIEW5, SHARED5 or VIEW2 macro: the array and its strides."""
    return (array, *strides(array))


def contiguous(array: Array, dtype: Any) -> Array:
    """A contiguous device array, copied from a device or host array only if necessary."""
    return cp.ascontiguousarray(cp.asarray(array, dtype))


def volume(array: Array) -> Array:
    """A view [N, C, D, H, W] of features, images or volumes; new axes have extent 1."""
    if array.ndim == 2:
        return array[:, :, None, None, None]
    return array[:, :, None] if array.ndim == 4 else array


def three(numbers: Sequence[int], fill: int) -> tuple[int, ...]:
    """One number per axis of a volume, with `fill` for the depth of an image."""
    return (fill,) * (3 - len(numbers)) + tuple(numbers)


@functools.lru_cache(maxsize=4096)
def merge_dims(
    shape: tuple[int, ...], *all_strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Reduce the dimensions of a box to exactly five.

    Adjacent dimensions that are contiguous in every array become one. If fewer than five remain,
    dimensions of extent 1 fill the gap.

    Parameters
    ----------
    shape
        Positive extents of the box.
    *all_strides
        Strides of each array over the box.

    Returns
    -------
    tuple
        Five extents, and five strides per array.

    Raises
    ------
    ValueError
        More than five dimensions remain.
    """
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in all_strides]
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        if extents and all(step[-1] == source[axis] * extent
                           for step, source in zip(steps, all_strides, strict=True)):
            extents[-1] *= extent
            for step, source in zip(steps, all_strides, strict=True):
                step[-1] = source[axis]
        else:
            extents.append(extent)
            for step, source in zip(steps, all_strides, strict=True):
                step.append(source[axis])
    missing = _MAX_DIMS - len(extents)
    if missing < 0:
        raise ValueError(f"a box has more than {_MAX_DIMS} dimensions: {tuple(shape)}")
    return (1,) * missing + tuple(extents), tuple((0,) * missing + tuple(step) for step in steps)


def box_words(array: Array) -> tuple[int, ...]:
    """The 64-bit words of a box in a table of boxes: address, five extents and five strides."""
    if array.size == 0:
        return (0,) * (1 + 2 * _MAX_DIMS)
    shape, (steps,) = merge_dims(array.shape, strides(array))
    return (address(array), *shape, *steps)


class NotBound(Exception):
    """A call has to compute something new every time, so it cannot be prepared."""


class Launcher:
    """Launches kernels on the current GPU; compiles each source once per type, on first use."""

    #: Launches that are prepared and not done; None where launches are done.
    _prepared: list[Call] | None = None
    _counters: Array = None

    def __init__(self) -> None:
        self._modules: dict[tuple[str, np.dtype], Any] = {}
        self._functions: dict[tuple[str, np.dtype], Any] = {}

    def counters(self, count: int) -> Array:
        """Counters that are 0 between two launches of the compute stream."""
        if self._counters is None or len(self._counters) < count:
            self._counters = cp.zeros(count, np.uint32)
        return self._counters

    def supports(self, dtype: Any) -> bool:
        """Whether the kernels support a type."""
        return np.dtype(dtype) in _REALS

    def _function(self, name: str, dtype: np.dtype) -> Any:
        function = self._functions.get((name, dtype))
        if function is None:
            subject = cupy_sources.kernels()[name]
            module = self._modules.get((subject, dtype))
            if module is None:
                options = (f"-DREAL={_REALS[dtype]}", "--std=c++17")
                module = cp.RawModule(code=cupy_sources.source(subject), options=options)
                self._modules[subject, dtype] = module
            function = self._functions[name, dtype] = module.get_function(name)
        return function

    def __call__(self, name: str, dtype: Any, items: int, args: tuple[Any, ...], *,
                 rows: int = 1) -> None:
        """Launch a kernel on the current stream.

        Parameters
        ----------
        dtype
            The type of REAL.
        items
            Threads along the first dimension of the grid; 0 launches nothing.
        args
            Arrays, ints (64 bits), floats (double) and NumPy scalars, as the kernel declares them.
        rows
            Blocks along the second dimension of the grid; 0 launches nothing.
        """
        if items <= 0 or rows <= 0:
            return
        blocks = min(math.ceil(items / cupy_sources.THREADS), _MAX_BLOCKS)
        function = self._function(name, np.dtype(dtype))
        shape = (blocks, min(rows, _MAX_BLOCKS)), (cupy_sources.THREADS,)
        if self._prepared is None:
            function(*shape, args)
        else:
            self._prepared.append(self._bound(function, shape, args))

    def prepare(self, call: Call) -> Call:
        """The launches of a call, prepared once: their arrays and numbers stay the same. The call
        must do nothing but launch kernels.
        """
        prepared: list[Call] = []
        self._prepared = prepared
        try:
            call()
        except NotBound:
            return call
        finally:
            self._prepared = None
        if len(prepared) == 1:
            return prepared[0]

        def launch_all() -> None:
            for launch in prepared:
                launch()

        return launch_all

    def _bound(self, function: Any, shape: tuple[tuple[int, ...], ...],
               args: tuple[Any, ...]) -> Call:
        """A launch whose arguments stay the same."""
        return _PreparedLaunch(function, shape, args)

    def unprepared(self) -> None:
        """Keep a call from being prepared, because it does more than launch kernels.

        Raises
        ------
        NotBound
            The call is being prepared.
        """
        if self._prepared is not None:
            raise NotBound

    def unchanged(self, array: Array, source: Array) -> Array:
        """An array that a call made of `source`, if it is the source itself.

        Raises
        ------
        NotBound
            It is a copy, which would keep today's values.
        """
        if address(array) != address(source):
            self.unprepared()
        return array


class _PreparedLaunch:
    """A launch with prepared arguments: 64-bit words, and pointers to them for CUDA's driver, which
    copies the words each time. CuPy would make new ones for every launch.
    """

    def __init__(self, function: Any, shape: tuple[tuple[int, ...], ...],
                 args: tuple[Any, ...]) -> None:
        self._args = args  # arrays that must live as long as the launch
        self._words = np.array([_word(arg) for arg in args], np.uint64)
        self._pointers = address(self._words) + 8 * np.arange(len(args), dtype=np.uint64)
        grid, block = ((*extents, 1, 1)[:3] for extents in shape)
        self._kernel = function.kernel.ptr, *grid, *block, 0
        self._params = address(self._pointers)

    def __call__(self) -> None:
        driver.launchKernel(*self._kernel, get_current_stream().ptr, self._params, 0)


def _word(arg: Any) -> int:
    """An argument's 64 bits."""
    if isinstance(arg, cp.ndarray):
        return address(arg)
    dtype = np.float64 if isinstance(arg, float) else np.int64
    bits = np.asarray(arg) if isinstance(arg, np.generic) else np.array(arg, dtype)
    return int(bits.view(np.uint64))


class Launching:
    """A backend with a launcher."""

    launch: Launcher
