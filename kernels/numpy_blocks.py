"""Scratch memory, blocks of images and BLAS operands for the NumPy kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from hpcpar.kernels.interface import Array, Tick

T = TypeVar("T")

#: Items in a block of an elementwise kernel: a few blocks fit in a core's L2 cache.
BLOCK_ITEMS = 1 << 15
#: Blocks of an elementwise kernel between two ticks: about a millisecond.
TICK_BLOCKS = 32
#: Limit of the planes in a block of a convolution, so that a block can have several rows.
PLANES = 16

_NONE = np.empty(0, np.uint8)


class Scratch:
    """Named work arrays, which grow as needed and are reused between calls. Not thread-safe."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialized C-ordered array, valid until the next request for the same name."""
        try:
            # This is an order of magnitude faster than a slice and a view. If the buffer is missing
            # or too small, it raises a TypeError.
            return np.ndarray(shape, dtype, self._buffers.get(name, _NONE))
        except TypeError:
            # The old buffer is freed before the new one is allocated.
            self._buffers.pop(name, None)
            self._buffers[name] = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
            return np.ndarray(shape, dtype, self._buffers[name])

    def window(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, strides: tuple[int, ...],
               offset: int = 0) -> Array:
        """A view of a named array with strides and an offset, both in bytes."""
        return np.ndarray(shape, dtype, self._buffers[name], offset, strides)

    @property
    def scratch_bytes(self) -> int:
        """Size of all buffers in bytes."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def volume_blocks(images: int, planes: int, rows: int, row_items: int,
                  limit: int) -> Iterator[tuple[slice, slice, slice]]:
    """Split a batch into blocks (images, planes, rows) of about `limit` items.

    A block has one or more whole images, or a part of one image: a slab of planes, split into rows.
    Blocks with several planes and rows have little overlap in the inputs that they read.

    Parameters
    ----------
    images, planes, rows
        Extents of the batch; if any is 0, there are no blocks.
    row_items
        Scratch items per row of one plane.
    limit
        Scratch items per block. A block has at least one row of one plane.
    """
    if images == 0 or planes == 0 or rows == 0:
        return
    image_items = planes * rows * row_items
    if image_items <= limit:
        for n in _even(images, limit // max(1, image_items)):
            yield n, slice(0, planes), slice(0, rows)
        return
    slab = max(1, min(planes, PLANES, limit // row_items))
    for image in range(images):
        for d in _even(planes, slab):
            for r in _even(rows, limit // ((d.stop - d.start) * row_items)):
                yield slice(image, image + 1), d, r


def _even(extent: int, limit: int) -> Iterator[slice]:
    """Partition [0, extent) evenly into intervals of at most max(1, `limit`) indices."""
    parts = math.ceil(extent / max(1, limit))
    for part in range(parts):
        yield slice(part * extent // parts, (part + 1) * extent // parts)


def is_blas_matrix(a: Array) -> bool:
    """Whether np.matmul passes the last two axes to BLAS: contiguous rows or columns, no overlap.

    For other arrays, NumPy uses a scalar loop, which is two orders of magnitude slower.
    """
    item = a.itemsize
    (m, n), (row, col) = a.shape[-2:], a.strides[-2:]
    by_rows = col == item and row % item == 0 and row >= n * item
    by_columns = row == item and col % item == 0 and col >= m * item
    return bool(by_rows or by_columns)


def blas_input(a: Array) -> Array:
    """`a`, or a contiguous copy if BLAS cannot read it in place."""
    return a if is_blas_matrix(a) else np.ascontiguousarray(a)


def has_flat_images(a: Array) -> bool:
    """Whether each channel of each image in [N, C, ...] is contiguous, as BLAS requires."""
    *planes, height, width = a.shape[2:]
    _, channel, *plane, row, col = a.strides
    flat_plane = col == a.itemsize and row == width * col
    flat_volume = not planes or planes[0] == 1 or plane[0] == height * row
    return bool(flat_plane and flat_volume and channel >= math.prod(planes) * height * row)


def flat_blocks(a: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """Matching cache-sized views of arrays with equal shapes, split along the leading axes."""
    if a.size <= BLOCK_ITEMS or a.ndim == 0:
        if a.size:
            yield (a, *others)
        return
    inner = a.size // a.shape[0]
    if inner > BLOCK_ITEMS:
        for parts in zip(a, *others, strict=True):
            yield from flat_blocks(*parts)
        return
    step = BLOCK_ITEMS // inner
    for start in range(0, a.shape[0], step):
        yield tuple(b[start : start + step] for b in (a, *others))


def ticking(blocks: Iterable[T], tick: Tick | None) -> Iterator[T]:
    """The blocks of an elementwise kernel, with a tick after every `TICK_BLOCKS` of them."""
    for i, block in enumerate(blocks, 1):
        yield block
        if tick is not None and i % TICK_BLOCKS == 0:
            tick()
