"""Indices of the inputs that blocks of a convolution read, cached by shape.

Without the cache, the computation of slices would dominate small blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcpar.kernels.geometry import Ints
from hpcpar.kernels.numpy_blocks import volume_blocks

#: Index of an array: slices, and None for the depth axis of an image.
Index = tuple[Any, ...]


@dataclass(frozen=True)
class Correlation:
    """Geometry of a correlation along depth, height and width.

    Output i reads inputs i * stride - before + dilation * u for u in range(kernel).
    """

    kernel: Ints
    stride: Ints
    dilation: Ints
    before: Ints

    @property
    def is_pointwise(self) -> bool:
        """Whether kernel and stride are 1 x 1 x 1, so that the columns are the image itself."""
        return self.kernel == (1, 1, 1) and self.stride == (1, 1, 1)

    def reach(self, axis: int, outputs: int) -> int:
        """Extent of the inputs, including padding, that `outputs` adjacent outputs read."""
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def row_items(self, width: int, channels: int) -> int:
        """Scratch items per row of outputs: columns or, at large strides, the padded image."""
        taps = max(self.kernel[1] * self.kernel[2], self.stride[1] * self.stride[2])
        return max(1, width * channels * taps * self.stride[0])

    def adjoint(self) -> Correlation:
        """The adjoint of a correlation with stride 1: its kernel is rotated by 180 degrees."""
        geometry = zip(self.dilation, self.kernel, self.before, strict=True)
        before = tuple(d * (k - 1) - b for d, k, b in geometry)
        return Correlation(self.kernel, self.stride, self.dilation, before)


class ColumnRun(NamedTuple):
    """Adjacent columns that col2im adds to the padded inputs in one NumPy call.

    Attributes
    ----------
    columns : Index
        Index of the run in columns [planes, images, rows, width, kh, kw * C].
    shape, strides : tuple of int
        Shape, and strides in bytes, of the inputs that the run is added to.
    offset : int
        Offset in bytes of these inputs in the padded inputs.
    """

    columns: Index
    shape: Ints
    strides: Ints
    offset: int


class BlockReads(NamedTuple):
    """Inputs that a block of outputs reads.

    Indices refer to the images of the block, [n, C, H, W] or [n, C, D, H, W], and select volumes.

    Attributes
    ----------
    outputs : Index
        The block in the outputs.
    in_x, in_padded : Index
        The inputs that the block reads, in x and in the padded inputs.
    covered : bool
        Whether the padded inputs are free of padding.
    padded : tuple of int
        Shape of the padded inputs [planes, images, rows, columns, C]; planes are a multiple of the
        stride.
    columns, strides : tuple of int
        Shape of the columns [stride, groups of planes, images, rows, width, kh, kw, C], and strides
        in bytes of this array in the padded inputs. Planes that are a stride apart are adjacent in
        the columns, so each kernel offset along the depth reads a contiguous range.
    pixels : tuple of int
        Shape of a matrix product without its channels: [planes, images, rows, width].
    starts : tuple of int
        First pixel of each kernel offset along the depth in the columns.
    runs : tuple of tuple of ColumnRun
        Runs of columns that each kernel offset along the depth adds to the padded inputs; empty if
        the stride is 1.
    """

    outputs: Index
    in_x: Index
    in_padded: Index
    covered: bool
    padded: Ints
    columns: Ints
    strides: Ints
    pixels: Ints
    starts: Ints
    runs: tuple[tuple[ColumnRun, ...], ...]


#: Blocks of a batch: images and inputs of each block.
Blocks = tuple[tuple[slice, BlockReads], ...]


def blocks(window: Correlation, x: Ints, inputs: slice, y: Ints, outputs: slice, limit: int,
           item: int) -> Blocks:
    """Split the outputs of a group of channels into blocks.

    Parameters
    ----------
    x, y : tuple of int
        Shapes of inputs and outputs.
    inputs, outputs : slice
        Channels of the group in x and y.
    limit : int
        Approximate bytes of the columns of a block.
    item : int
        Bytes per item.
    """
    planes, rows, width = _volume(y)
    if width == 0:
        return ()
    row_items = window.row_items(width, inputs.stop - inputs.start)
    by_extents: dict[Ints, BlockReads] = {}
    result = []
    for n, d, r in volume_blocks(y[0], planes, rows, row_items, limit // item):
        images = n.stop - n.start
        key = (images, d.start, d.stop, r.start, r.stop)
        if key not in by_extents:
            by_extents[key] = _reads(window, x, inputs, outputs, images, d, r, width, item)
        result.append((n, by_extents[key]))
    return tuple(result)


def _volume(shape: Ints) -> Ints:
    """Depth, height and width of [N, C, ...]; an image has one plane."""
    return (1, *shape[2:]) if len(shape) == 4 else shape[2:]


def _reads(window: Correlation, x: Ints, inputs: slice, outputs: slice, images: int, d: slice,
           r: slice, width: int, item: int) -> BlockReads:
    """The inputs of output planes `d` and rows `r` in a number of images."""
    (kd, kh, kw), (sd, sh, sw), (dd, dh, dw) = window.kernel, window.stride, window.dilation
    planes, rows, channels = d.stop - d.start, r.stop - r.start, inputs.stop - inputs.start
    groups = -(-window.reach(0, planes) // sd)
    extents = (groups * sd, window.reach(1, rows), window.reach(2, width))
    firsts = (d.start, r.start, 0)
    overlaps = [_overlap(window, axis, firsts[axis], extents[axis], extent)
                for axis, extent in enumerate(_volume(x))]
    (padded_d, x_d), (padded_h, x_h), (padded_w, x_w) = overlaps
    # Strides in bytes of the padded inputs.
    pixel = item * channels
    line = pixel * extents[2]
    image = line * extents[1]
    plane = image * images
    pixels = (planes, images, rows, width)
    strides = (sd * plane, image, sh * line, sw * pixel)
    runs: list[tuple[ColumnRun, ...]] = []
    for u in range(kd) if window.stride != (1, 1, 1) else ():
        # Adjacent taps belong to adjacent inputs, so one run adds up to `sw` of them. The inputs of
        # longer runs would overlap between adjacent outputs.
        group = sw if dw == 1 else 1
        runs_u = []
        for a in range(kh):
            for b in range(0, kw, group):
                items = min(group, kw - b) * channels
                columns = (..., a, slice(b * channels, b * channels + items))
                offset = u * dd * plane + a * dh * line + b * dw * pixel
                runs_u.append(ColumnRun(columns, (*pixels, items), (*strides, item), offset))
        runs.append(tuple(runs_u))
    whole = slice(None)
    is_image = len(x) == 4
    return BlockReads(
        outputs=(whole, outputs, None if is_image else d, r),
        in_x=(whole, inputs, None if is_image else x_d, x_h, x_w),
        in_padded=(padded_d, whole, padded_h, padded_w),
        covered=(padded_d, padded_h, padded_w) == tuple(slice(0, extent) for extent in extents),
        padded=(extents[0], images, *extents[1:], channels),
        columns=(sd, groups, images, rows, width, kh, kw, channels),
        strides=(plane, *strides, dh * line, dw * pixel, item),
        pixels=pixels,
        starts=tuple((u * dd % sd * groups + u * dd // sd) * images * rows * width
                     for u in range(kd)),
        runs=tuple(runs),
    )


def _overlap(window: Correlation, axis: int, first: int, padded: int,
             inputs: int) -> tuple[slice, slice]:
    """The part of a padded extent within the inputs, as slices of both."""
    start = first * window.stride[axis] - window.before[axis]
    low = min(max(0, -start), padded)
    high = max(low, min(padded, inputs - start))
    # An empty part must not become a slice with negative indices.
    return slice(low, high), slice(low + start, high + start) if high > low else slice(0, 0)
