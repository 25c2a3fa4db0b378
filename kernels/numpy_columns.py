"""Gathering what a convolution reads into matrices, pixel by pixel with the channels last, and the
adjoints of that.

With the channels last the part of a window that lies in one row of the image is one contiguous run
of kernel width * channels items, which NumPy copies at memcpy's speed; in NCHW order a run is at
most one (short) image row. Pixels are in the order depth, image, row, column: with the depth
outermost, all that one place of the kernel along the depth reads is one range of rows.
"""

from __future__ import annotations

import math

from numpy.typing import DTypeLike

from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import Scratch, has_flat_images
from hpcpar.kernels.numpy_windows import Reads, Window

#: Items of the axis that a transposing copy is cut along: a cache line of each then stays in L1
#: until it is used up.
TILE = 64


def gather(x: Array, window: Window, reads: Reads, scratch: Scratch) -> list[Array]:
    """The inputs that a block of outputs reads: for each place of the kernel along the depth
    columns [pixels, kh * kw * C].

    Parameters
    ----------
    x : array
        The block's images.
    """
    padded = scratch.get("padded", reads.padded, x.dtype)
    if not reads.covered:
        padded[...] = 0
    padded[reads.inside] = x[reads.within].transpose(2, 0, 3, 4, 1)
    columns, depth = padded, padded.shape[4]
    if not window.is_pointwise:
        columns = scratch.get("columns", reads.columns, x.dtype)
        columns[...] = scratch.window("padded", reads.columns, x.dtype, reads.strides)
        depth *= window.kernel[1] * window.kernel[2]
    columns, count = columns.reshape(math.prod(reads.columns[:5]), depth), math.prod(reads.pixels)
    return [columns[start:start + count] for start in reads.starts]


def clear(reads: Reads, dtype: DTypeLike, scratch: Scratch) -> None:
    """Zero the padded inputs of a block, which `add_columns` adds to."""
    scratch.get("padded", reads.padded, dtype)[...] = 0


def add_columns(columns: Array, reads: Reads, u: int, scratch: Scratch) -> None:
    """Add columns [pixels, kh, kw, C] to the inputs that place u of the kernel along the depth
    reads.
    """
    columns = columns.reshape(*reads.pixels, columns.shape[1], columns.shape[2] * columns.shape[3])
    for of, shape, strides, offset in reads.sums[u]:
        sums = scratch.window("padded", shape, columns.dtype, strides, offset)
        sums += columns[of]


def add_padded(reads: Reads, dx: Array, scratch: Scratch) -> None:
    """Add the sums of a block to the dx of its images; what lies in the padding is dropped."""
    dx[reads.within] += scratch.get("padded", reads.padded, dx.dtype)[reads.inside].transpose(1, 4, 0, 2, 3)


def store(product: Array, reads: Reads, out: Array) -> None:
    """Copy pixels [D * N * H * W, O] into images of out, in tiles: whole planes would miss the L1
    cache at every item.
    """
    planes, _, rows, width = reads.pixels
    pixels, out = product.reshape(*reads.pixels, product.shape[1]).transpose(1, 4, 0, 2, 3), out[reads.outputs]
    step = max(1, TILE // width)
    if planes == 1 and step >= rows:
        out[...] = pixels
        return
    for plane in range(planes):
        for start in range(0, rows, step):
            out[:, :, plane, start:start + step] = pixels[:, :, plane, start:start + step]


def pixels_last(dy: Array, reads: Reads, scratch: Scratch) -> Array:
    """A block of images of dy as a matrix [O, D * N * H * W] with contiguous rows; a view if it can
    be.
    """
    block, (planes, count, height, width) = dy[reads.outputs], reads.pixels
    filters = block.shape[1]
    if count == 1 and has_flat_images(block):
        return block.reshape(filters, planes * height * width)
    flat = scratch.get("pixels", (filters, planes, count, height, width), block.dtype)
    flat[...] = block.transpose(1, 2, 0, 3, 4)
    return flat.reshape(filters, planes * count * height * width)
