"""Compiling and launching the CUDA C kernels, and describing strided arrays to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels import cupy_sources
from hpcpar.kernels.interface import Array

#: Most blocks in a grid's dimension (the limit of the second one). The kernels loop, so fewer
#: blocks than work are fine.
_MAX_BLOCKS = 65535
_MAX_DIMS = 5


def strides(array: Array) -> tuple[int, ...]:
    """An array's strides in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def view(array: Array) -> tuple[Any, ...]:
    """The parameters of a VIEW5, SHARED5 or VIEW2 macro: the array and its strides."""
    return (array, *strides(array))


def contiguous(array: Array, dtype: Any) -> Array:
    """A small array as a kernel without strides takes it; copied (also from the host) only where it
    must be.
    """
    return cp.ascontiguousarray(cp.asarray(array, dtype))


def volume(array: Array) -> Array:
    """A view [N, C, D, H, W] of features, images or volumes: missing image axes are of one index,
    the depth first.
    """
    if array.ndim == 2:
        return array[:, :, None, None, None]
    return array[:, :, None] if array.ndim == 4 else array


def three(numbers: Sequence[int], fill: int) -> tuple[int, ...]:
    """One number for each axis of a volume; `fill` for the depth of images."""
    return (fill,) * (3 - len(numbers)) + tuple(numbers)


def merge_dims(shape: Sequence[int], *all_strides: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same box with five dimensions: neighbours that every array walks through evenly are
    merged, ones are put in front.

    Parameters
    ----------
    shape
        Extents of the box, none of them 0.
    *all_strides
        Per array over the box, its strides.

    Returns
    -------
    tuple
        Five extents, and per array five strides.

    Raises
    ------
    ValueError
        More than five dimensions are left.
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
    return (1,) * missing + tuple(extents), [(0,) * missing + tuple(step) for step in steps]


class Launcher:
    """The kernels of this package on the current GPU: compiled when first used, once per subject
    and type.
    """

    def __init__(self) -> None:
        self._modules: dict[tuple[str, str], Any] = {}
        self._functions: dict[tuple[str, str], Any] = {}

    def supports(self, dtype: Any) -> bool:
        """Whether the kernels exist for a type."""
        return np.dtype(dtype).name in cupy_sources.REALS

    def _function(self, name: str, dtype_name: str) -> Any:
        function = self._functions.get((name, dtype_name))
        if function is None:
            subject = cupy_sources.kernels()[name]
            module = self._modules.get((subject, dtype_name))
            if module is None:
                options = (f"-DREAL={cupy_sources.REALS[dtype_name]}", "--std=c++17")
                module = cp.RawModule(code=cupy_sources.source(subject), options=options)
                self._modules[subject, dtype_name] = module
            function = self._functions[name, dtype_name] = module.get_function(name)
        return function

    def __call__(self, name: str, dtype: Any, items: int, args: tuple[Any, ...], *,
                 rows: int = 1) -> None:
        """Launch a kernel on the current stream.

        Parameters
        ----------
        name
            The kernel.
        dtype
            The type that REAL stands for.
        items
            Threads wanted in the grid's first dimension; nothing is launched for none.
        args
            Arrays, ints (64 bits), floats (double) and NumPy scalars, as the kernel declares them.
        rows
            Blocks wanted in the grid's second dimension.
        """
        if items <= 0 or rows <= 0:
            return
        blocks = min(math.ceil(items / cupy_sources.THREADS), _MAX_BLOCKS)
        self._function(name, np.dtype(dtype).name)((blocks, min(rows, _MAX_BLOCKS)),
                                                   (cupy_sources.THREADS,), args)
