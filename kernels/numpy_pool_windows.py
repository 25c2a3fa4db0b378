"""Indices of the inputs that blocks of a pooling read, cached by shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcpar.kernels.geometry import Ints, PoolSpec
from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS

#: Size of the caches of geometries: larger than the number of different poolings in a network.
SHAPES = 256
#: A plane is not split into rows up to this multiple of the block size: whole planes are faster.
WHOLE = 4

Index = tuple[Any, ...]


class WindowOffset(NamedTuple):
    """One offset in the window along one image axis.

    Attributes
    ----------
    code : int
        Contribution to the row-major offset in the window.
    outputs, reads : Index
        Indices of the outputs whose input at this offset is not padding, and of these inputs, in
        arrays [N, C, ...].
    """

    code: int
    outputs: Index
    reads: Index


class RowBlock(NamedTuple):
    """A range of outputs along the first image axis: rows of images, or planes of volumes.

    Attributes
    ----------
    rows, reads : slice
        The outputs, and the inputs that they read along the first image axis.
    offsets : tuple of tuple of WindowOffset
        Window offsets per image axis. Indices along the first axis are relative to `rows` and
        `reads`.
    complete : tuple of bool
        Per image axis, whether the first window offset is not padding for any output.
    """

    rows: slice
    reads: slice
    offsets: tuple[tuple[WindowOffset, ...], ...]
    complete: tuple[bool, ...]


class PoolBlocks(NamedTuple):
    """The blocks of a pooling: several small images, some channels of an image, or some rows.

    Outputs outside all blocks read no input.
    """

    images: tuple[slice, ...]
    channels: tuple[slice, ...]
    rows: tuple[RowBlock, ...]

    def each(self) -> Iterator[tuple[slice, slice, int, RowBlock]]:
        """Images, channels, number of the row block and row block, of each block."""
        return ((n, c, i, rows) for n in self.images for c in self.channels
                for i, rows in enumerate(self.rows))


@lru_cache(maxsize=SHAPES)
def pool_blocks(x: Ints, out: Ints, spec: PoolSpec) -> PoolBlocks:
    """The blocks of a pooling from the shapes of its inputs and outputs."""
    if math.prod(x) == 0 or math.prod(out) == 0:
        return PoolBlocks((), (), ())
    images, channels, extent = out[:3]
    row_items = max(math.prod(x[3:]) * min(spec.stride[0], x[2]), math.prod(out[3:]))
    whole = row_items * extent <= WHOLE * BLOCK_ITEMS
    rows = extent if whole else max(1, BLOCK_ITEMS // row_items)
    channel_step = max(1, BLOCK_ITEMS // (row_items * rows)) if rows == extent else 1
    image_step = max(1, channel_step // channels)
    return PoolBlocks(
        tuple(slice(n, n + image_step) for n in range(0, images, image_step)),
        tuple(slice(c, c + channel_step) for c in range(0, channels, channel_step)),
        tuple(_row_block(x, out, first, min(first + rows, extent), spec)
              for first in range(0, extent, rows)),
    )


def _row_block(x: Ints, out: Ints, first: int, stop: int, spec: PoolSpec) -> RowBlock:
    """Outputs [first, stop) along the first image axis."""
    rows, *others = (_offsets(axis, first if axis == 0 else 0, stop if axis == 0 else out[2 + axis],
                              x[2 + axis], spec) for axis in range(len(x) - 2))
    reads = [offset.reads[2] for offset in rows]
    low = min((read.start for read in reads), default=0)
    high = max((read.stop for read in reads), default=0)
    relative = [slice(read.start - low, read.stop - low, read.step) for read in reads]
    rows = [offset._replace(reads=_along(0, read))
            for offset, read in zip(rows, relative, strict=True)]
    offsets = tuple(map(tuple, (rows, *others)))
    extents = (stop - first, *out[3:])
    complete = tuple(map(_is_complete, offsets, extents))
    return RowBlock(slice(first, stop), slice(low, high), offsets, complete)


def _is_complete(offsets: tuple[WindowOffset, ...], outputs: int) -> bool:
    """Whether the first window offset is not padding for any output along an axis."""
    return (len(offsets) > 0 and offsets[0].code == 0
            and offsets[0].outputs[-1] == slice(0, outputs))


def _offsets(axis: int, first: int, stop: int, inputs: int, spec: PoolSpec) -> list[WindowOffset]:
    """Window offsets along an axis for outputs [first, stop); indices are relative to `first`."""
    stride, before = spec.stride[axis], spec.pads[axis][0]
    inner = math.prod(spec.kernel[axis + 1:])
    offsets = []
    for u in range(spec.kernel[axis]):
        low = max(first, -((u - before) // stride))
        high = min(stop - 1, (inputs - 1 + before - u) // stride)
        if low <= high:
            start = low * stride + u - before
            outputs = slice(low - first, high + 1 - first)
            reads = slice(start, start + (high - low) * stride + 1, stride)
            offsets.append(WindowOffset(u * inner, _along(axis, outputs), _along(axis, reads)))
    return offsets


def _along(axis: int, part: slice) -> Index:
    """The index of `part` along an image axis of an array [N, C, ...]."""
    return (slice(None),) * (2 + axis) + (part,)


class ScatterIndex(NamedTuple):
    """Distances in memory between inputs, in items, to scatter gradients to the maxima.

    Attributes
    ----------
    offset : array
        [window size], from the corner of a window to each offset in it.
    planes : array
        [images of a block, channels of a block, 1, ...], from the first channel of a block.
    corners : tuple of array
        Per row block [rows, ...], from the start of a channel to the corners of the windows.
    outside : tuple of array or None
        Per row block, whether each window's corner is in the padding; None if no corner is.
    """

    offset: Array
    planes: Array
    corners: tuple[Array, ...]
    outside: tuple[Array | None, ...]


@lru_cache(maxsize=SHAPES)
def scatter_index(x: Ints, out: Ints, strides: Ints, spec: PoolSpec) -> ScatterIndex:
    """Distances for inputs [N, C, ...] whose strides are given in items."""
    blocks = pool_blocks(x, out, spec)
    image_strides = strides[2:]
    window = np.unravel_index(np.arange(math.prod(spec.kernel)), spec.kernel)
    offset = sum(u * stride for u, stride in zip(window, image_strides, strict=True))
    images = min(x[0], blocks.images[0].stop) if blocks.images else 0
    channels = min(x[1], blocks.channels[0].stop) if blocks.channels else 0
    planes = np.add.outer(np.arange(images) * strides[0], np.arange(channels) * strides[1])
    corners, outside = [], []
    for block in blocks.rows:
        firsts = _corners(out[3:], block.rows, spec)
        corners.append(sum(first * stride
                           for first, stride in zip(firsts, image_strides, strict=True)))
        padding = np.zeros(np.broadcast_shapes(*(first.shape for first in firsts)), bool)
        for first, extent in zip(firsts, x[2:], strict=True):
            padding |= (first < 0) | (first >= extent)
        outside.append(padding if padding.any() else None)
    planes = planes.reshape(images, channels, *(1 for _ in image_strides))
    return ScatterIndex(offset, planes, tuple(corners), tuple(outside))


def _corners(others: Ints, rows: slice, spec: PoolSpec) -> list[Array]:
    """First input index of each window of `rows`, per image axis, shaped to broadcast over images.

    `others` are the extents of the outputs along the other image axes.
    """
    outputs = [np.arange(rows.start, rows.stop), *map(np.arange, others)]
    corners = []
    for axis, index in enumerate(outputs):
        first = index * spec.stride[axis] - spec.pads[axis][0]
        corners.append(first.reshape((-1,) + (1,) * (len(others) - axis)))
    return corners
