"""im2col and col2im of a convolution, with one row per output pixel and the channels last.

With the channels last, the part of a window within an image row is a contiguous run of kernel
width * channels items, which NumPy copies at the speed of memcpy. In NCHW order, a run is at most
one image row. Pixels are in the order depth, image, row, column. With the depth outermost, the
inputs of one kernel offset along the depth are one range of rows.
"""

from __future__ import annotations

import math

from numpy.typing import DTypeLike

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import Scratch, has_flat_images
from hpcpar.kernels.numpy_conv_windows import BlockReads, Correlation

#: Tile size of a transposing copy: one cache line per item of the tile fits in the L1 cache.
TILE = 64


def gather(x: Array, window: Correlation, reads: BlockReads, scratch: Scratch) -> list[Array]:
    """The columns [pixels, kh * kw * C] of a block x, one matrix per kernel offset in depth."""
    padded = scratch.get("padded", reads.padded, x.dtype)
    if not reads.covered:
        padded[...] = 0
    padded[reads.in_padded] = x[reads.in_x].transpose(2, 0, 3, 4, 1)
    columns, depth = padded, padded.shape[4]
    if not window.is_pointwise:
        columns = scratch.get("columns", reads.columns, x.dtype)
        columns[...] = scratch.window("padded", reads.columns, x.dtype, reads.strides)
        depth *= window.kernel[1] * window.kernel[2]
    columns = columns.reshape(math.prod(reads.columns[:5]), depth)
    count = math.prod(reads.pixels)
    return [columns[start:start + count] for start in reads.starts]


def clear(reads: BlockReads, dtype: DTypeLike, scratch: Scratch) -> None:
    """Zero the padded inputs of a block, to which `add_columns` adds."""
    scratch.get("padded", reads.padded, dtype)[...] = 0


def add_columns(columns: Array, reads: BlockReads, u: int, scratch: Scratch) -> None:
    """Add columns [pixels, kh, kw, C] to the inputs of kernel offset u along the depth."""
    columns = columns.reshape(*reads.pixels, columns.shape[1], columns.shape[2] * columns.shape[3])
    for run in reads.runs[u]:
        inputs = scratch.window("padded", run.shape, columns.dtype, run.strides, run.offset)
        inputs += columns[run.columns]


def add_padded(reads: BlockReads, dx: Array, scratch: Scratch) -> None:
    """Add the padded inputs of a block, without the padding, to dx."""
    padded = scratch.get("padded", reads.padded, dx.dtype)
    dx[reads.in_x] += padded[reads.in_padded].transpose(1, 4, 0, 2, 3)


def store(product: Array, reads: BlockReads, out: Array) -> None:
    """Copy pixels [D * N * H * W, O] to images of out, in tiles that fit in the L1 cache."""
    planes, _, rows, width = reads.pixels
    pixels = product.reshape(*reads.pixels, product.shape[1]).transpose(1, 4, 0, 2, 3)
    out = out[reads.outputs]
    step = max(1, TILE // width)
    if planes == 1 and step >= rows:
        out[...] = pixels
        return
    for plane in range(planes):
        for start in range(0, rows, step):
            out[:, :, plane, start:start + step] = pixels[:, :, plane, start:start + step]


def pixels_last(dy: Array, reads: BlockReads, scratch: Scratch) -> Array:
    """A block of dy as a matrix [O, D * N * H * W] with contiguous rows, a view if possible."""
    block, (planes, count, height, width) = dy[reads.outputs], reads.pixels
    filters = block.shape[1]
    if count == 1 and has_flat_images(block):
        return block.reshape(filters, planes * height * width)
    flat = scratch.get("pixels", (filters, planes, count, height, width), block.dtype)
    flat[...] = block.transpose(1, 2, 0, 3, 4)
    return flat.reshape(filters, planes * count * height * width)
