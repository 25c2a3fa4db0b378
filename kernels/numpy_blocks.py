"""Scratch memory, blocks of images and BLAS-ready views for the NumPy kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from hpcpar.kernels.interface import Array, Tick

T = TypeVar("T")

#: Items in a block of an elementwise kernel: a few such blocks stay in a core's L2 cache.
BLOCK_ITEMS = 1 << 15
#: So many blocks of an elementwise kernel take about a millisecond.
TICK_BLOCKS = 32
#: Most planes of a volume in a block of a convolution, so that rows, too, stay together.
PLANES = 16

_NONE = np.empty(0, np.uint8)


class Scratch:
    """Named work arrays that grow to the largest size asked for and are kept between calls.

    Not for several threads: two kernels of one backend never run at once.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialised C-ordered array; valid until the same name is asked for again."""
        try:
            # An order of magnitude faster than slices and views of it; of no buffer, or of one too
            # small, this is an error.
            return np.ndarray(shape, dtype, self._buffers.get(name, _NONE))
        except TypeError:
            # Dropped first, so that the old and the new buffer never exist together.
            self._buffers.pop(name, None)
            self._buffers[name] = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
            return np.ndarray(shape, dtype, self._buffers[name])

    def window(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, strides: tuple[int, ...],
               offset: int = 0) -> Array:
        """A view of the array of that name, with strides and an offset from its beginning in bytes.
        """
        return np.ndarray(shape, dtype, self._buffers[name], offset, strides)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def volume_blocks(images: int, planes: int, rows: int, row_items: int,
                  limit: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut a batch into blocks (images, planes, rows) of about `limit` items: several whole images,
    or parts of one image.

    An image that is too large is cut into slabs of planes and these into rows: a block of a few
    planes has little to read twice at its borders, whichever way it is cut.

    Parameters
    ----------
    images, planes, rows
        The extents to cut; nothing is yielded if any is 0.
    row_items
        Scratch items that one row of one plane costs.
    limit
        Scratch items of a block; one row of one plane is never cut.
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


def _even(extent: int, most: int) -> Iterator[slice]:
    """Parts of [0, extent) of at most `most` indices (at least one), as even as can be."""
    parts = math.ceil(extent / max(1, most))
    for part in range(parts):
        yield slice(part * extent // parts, (part + 1) * extent // parts)


def is_blas_matrix(a: Array) -> bool:
    """Whether np.matmul hands the last two axes to BLAS as they are (rows or columns contiguous,
    not overlapping).

    Anything else runs in a scalar loop that is two orders of magnitude slower, so it is copied
    first.
    """
    item = a.itemsize
    (m, n), (row, col) = a.shape[-2:], a.strides[-2:]
    return bool((col == item and row % item == 0 and row >= n * item)
                or (row == item and col % item == 0 and col >= m * item))


def blas_input(a: Array) -> Array:
    """`a`, copied only if BLAS cannot read it in place."""
    return a if is_blas_matrix(a) else np.ascontiguousarray(a)


def has_flat_images(a: Array) -> bool:
    """Whether the image axes of an array [N, C, ...] are one contiguous run, so that merging them
    makes a view BLAS can write.
    """
    *planes, height, width = a.shape[2:]
    _, channel, *plane, row, col = a.strides
    flat = col == a.itemsize and row == width * col and (not planes or planes[0] == 1
                                                         or plane[0] == height * row)
    return bool(flat and channel >= math.prod(planes) * height * row)


def flat_blocks(a: Array, *others: Array) -> Iterator[tuple[Array, ...]]:
    """Matching cache-sized pieces of arrays of one shape, cut along the leading axes only (views,
    so writes go through).
    """
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
    """The blocks of an elementwise kernel, with a tick after some of them."""
    for i, block in enumerate(blocks, 1):
        yield block
        if tick is not None and i % TICK_BLOCKS == 0:
            tick()
