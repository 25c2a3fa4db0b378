"""Gathering what a convolution reads into matrices, pixel by pixel with the channels last, and the adjoints of that.

With the channels last the part of a window that lies in one row of the image is one contiguous run of kernel width * channels
items, which NumPy copies at memcpy's speed; in NCHW order a run is at most one (short) image row. Pixels are in the order
depth, image, row, column: with the depth outermost, all that one place of the kernel along the depth reads is one range of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from hpcpar.kernels.interface import Array, Ints
from hpcpar.kernels.numpy_blocks import Scratch, has_flat_images

#: Items of the axis that a transposing copy is cut along: a cache line of each then stays in L1 until it is used up.
TILE = 64

#: A block of outputs: images, planes and rows.
Block = tuple[slice, slice, slice]
Blocks = Iterator[Block]


@dataclass(frozen=True)
class Window:
    """Where the outputs of a correlation read, for depth, height and width: output i reads i * stride - before + dilation * u."""

    kernel: Ints
    stride: Ints
    dilation: Ints
    before: Ints

    @property
    def is_pointwise(self) -> bool:
        """A 1x1x1 kernel that moves pixel by pixel: the columns are the image itself."""
        return self.kernel == (1, 1, 1) and self.stride == (1, 1, 1)

    def reach(self, axis: int, outputs: int) -> int:
        """Inputs (padding included) between the first and the last that `outputs` neighbouring outputs read."""
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def row_items(self, width: int, channels: int) -> int:
        """Scratch items per row of outputs: the columns or, where the stride skips inputs, the padded image."""
        return max(1, width * channels * max(self.kernel[1] * self.kernel[2], self.stride[1] * self.stride[2]) * self.stride[0])


def _extents(window: Window, block: Block, width: int) -> tuple[int, int, int, int]:
    """(planes, images, rows, columns) of the padded inputs of a block; planes are rounded up to a multiple of the stride."""
    n, d, r = (s.stop - s.start for s in block)
    return -(-window.reach(0, d) // window.stride[0]) * window.stride[0], n, window.reach(1, r), window.reach(2, width)


def empty_padded(window: Window, block: Block, width: int, channels: int, dtype: DTypeLike, scratch: Scratch) -> Array:
    """Room for the inputs that a block of outputs reads, padding included: [planes, images, rows, columns, C]."""
    return scratch.get("padded", (*_extents(window, block, width), channels), dtype)


def gather(x: Array, window: Window, block: Block, width: int, scratch: Scratch) -> list[Array]:
    """The inputs that a block of outputs reads: for each place of the kernel along the depth columns [pixels, kh * kw * C].

    Parameters
    ----------
    x : array
        [N, C, D, H, W].
    width : int
        Columns of the output.
    """
    padded = _padded(x, window, block, width, scratch)
    (kd, kh, kw), (sd, sh, sw), (dd, dh, dw) = window.kernel, window.stride, window.dilation
    count, planes, rows = (s.stop - s.start for s in block)
    channels, pixels = x.shape[1], count * rows * width
    columns = padded
    if not window.is_pointwise:
        # Planes that are a stride apart come together: those that one place of the kernel reads are then neighbours.
        groups = padded.shape[0] // sd
        plane, image, line, pixel, item = padded.strides
        strides = (plane, sd * plane, image, sh * line, sw * pixel, dh * line, dw * pixel, item)
        columns = scratch.get("columns", (sd, groups, count, rows, width, kh, kw, channels), x.dtype)
        columns[...] = as_strided(padded, columns.shape, strides, writeable=False)
    columns = columns.reshape(sd, -1, kh * kw * channels)
    places = (divmod(u * dd, sd) for u in range(kd))
    return [columns[rest, first * pixels : (first + planes) * pixels] for first, rest in places]


def _padded(x: Array, window: Window, block: Block, width: int, scratch: Scratch) -> Array:
    """The part of x that a block of outputs reads, padding included."""
    padded = empty_padded(window, block, width, x.shape[1], x.dtype, scratch)
    (inside_d, x_d), (inside_h, x_h), (inside_w, x_w) = _overlaps(window, block, padded, x)
    if (inside_d.stop - inside_d.start, inside_h.stop - inside_h.start, inside_w.stop - inside_w.start) != (
        padded.shape[0], *padded.shape[2:4]
    ):
        padded[...] = 0
    padded[inside_d, :, inside_h, inside_w] = x[block[0], :, x_d, x_h, x_w].transpose(2, 0, 3, 4, 1)
    return padded


def _overlaps(window: Window, block: Block, padded: Array, x: Array) -> list[tuple[slice, slice]]:
    """Per image axis, the part of a padded block that lies inside x and where that is in x (both empty if nowhere)."""
    result = []
    for axis, first in enumerate((block[1].start, block[2].start, 0)):
        start = first * window.stride[axis] - window.before[axis]
        extent, within = padded.shape[axis + (axis > 0)], x.shape[2 + axis]
        low = min(max(0, -start), extent)
        high = max(low, min(extent, within - start))
        # An empty part may lie outside x: its slice must not become a negative index.
        result.append((slice(low, high), slice(low + start, high + start) if high > low else slice(0, 0)))
    return result


def add_columns(columns: Array, window: Window, u: int, block: Block, width: int, padded: Array) -> None:
    """Add columns [pixels, kh, kw, C] to the inputs that place u of the kernel along the depth reads."""
    count, planes, rows = (s.stop - s.start for s in block)
    (_, kh, kw), (sd, sh, sw), (dd, dh, dw) = window.kernel, window.stride, window.dilation
    channels = padded.shape[4]
    columns = columns.reshape(planes, count, rows, width, kh, kw * channels)
    plane, image, line, pixel, item = padded.strides
    # Neighbouring taps go to neighbouring inputs in one run, up to the stride: beyond it, runs of neighbouring outputs overlap.
    group = sw if dw == 1 else 1
    for a in range(kh):
        for b in range(0, kw, group):
            run = min(group, kw - b) * channels
            strides = (sd * plane, image, sh * line, sw * pixel, item)
            sums = as_strided(padded[u * dd :, :, a * dh :, b * dw :], (planes, count, rows, width, run), strides)
            sums += columns[..., a, b * channels : b * channels + run]


def add_padded(padded: Array, window: Window, block: Block, dx: Array) -> None:
    """Add the sums of a block to dx [N, C, D, H, W]; what lies in the padding is dropped."""
    (inside_d, x_d), (inside_h, x_h), (inside_w, x_w) = _overlaps(window, block, padded, dx)
    dx[block[0], :, x_d, x_h, x_w] += padded[inside_d, :, inside_h, inside_w].transpose(1, 4, 0, 2, 3)


def store(product: Array, out: Array) -> None:
    """Copy pixels [D * N * H * W, O] into [N, O, D, H, W], in tiles: whole planes would miss the L1 cache at every item."""
    images, filters, planes, rows, width = out.shape
    pixels = product.reshape(planes, images, rows, width, filters).transpose(1, 4, 0, 2, 3)
    step = max(1, TILE // width)
    for plane in range(planes):
        for start in range(0, rows, step):
            out[:, :, plane, start : start + step] = pixels[:, :, plane, start : start + step]


def pixels_last(block: Array, scratch: Scratch) -> Array:
    """A block [N, O, D, H, W] as a matrix [O, D * N * H * W] with contiguous rows; a view if it can be."""
    count, filters, planes, height, width = block.shape
    if count == 1 and has_flat_images(block):
        return block.reshape(filters, planes * height * width)
    flat = scratch.get("pixels", (filters, planes, count, height, width), block.dtype)
    flat[...] = block.transpose(1, 2, 0, 3, 4)
    return flat.reshape(filters, planes * count * height * width)
