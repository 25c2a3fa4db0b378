"""Where the outputs of a convolution read, worked out once for every shape.

A call on a small block would otherwise spend more time on its slices than on its copies and
products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from hpcpar.kernels.interface import Ints
from hpcpar.kernels.numpy_blocks import volume_blocks

#: An index into an array: slices, and None where an image gets the depth that volumes have.
Index = tuple[Any, ...]


@dataclass(frozen=True)
class Window:
    """Where the outputs of a correlation read, for depth, height and width: output i reads i *
    stride - before + dilation * u.
    """

    kernel: Ints
    stride: Ints
    dilation: Ints
    before: Ints

    @property
    def is_pointwise(self) -> bool:
        """A 1x1x1 kernel that moves pixel by pixel: the columns are the image itself."""
        return self.kernel == (1, 1, 1) and self.stride == (1, 1, 1)

    def reach(self, axis: int, outputs: int) -> int:
        """Inputs (padding included) between the first and the last that `outputs` neighbouring
        outputs read.
        """
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def row_items(self, width: int, channels: int) -> int:
        """Scratch items per row of outputs: the columns or, where the stride skips inputs, the
        padded image.
        """
        return max(1,
                   width * channels * max(self.kernel[1] * self.kernel[2],
                                          self.stride[1] * self.stride[2]) * self.stride[0])

    def turned(self) -> Window:
        """The window of the adjoint of a correlation without stride: inputs by outputs, the kernel
        turned by 180 degrees.
        """
        before = tuple(d * (k - 1) - b for d, k, b in zip(self.dilation, self.kernel, self.before,
                                                          strict=True))
        return Window(self.kernel, self.stride, self.dilation, before)


class Sums(NamedTuple):
    """Neighbouring columns that are added to the padded inputs in one run.

    Attributes
    ----------
    columns : Index
        In columns [planes, images, rows, width, kh, kw * C].
    shape, strides : tuple of int
        Of the inputs that they go to; strides in bytes.
    offset : int
        Bytes from the beginning of the padded inputs.
    """

    columns: Index
    shape: Ints
    strides: Ints
    offset: int


class Reads(NamedTuple):
    """What a block of outputs reads. Indices are of the block's images, [n, C, H, W] or [n, C, D,
    H, W]; all that is cut is volumes.

    Attributes
    ----------
    outputs : Index
        The block in the outputs.
    within, inside : Index
        What is read of the inputs, and where it is in the padded inputs.
    covered : bool
        Nothing of the padded inputs is padding.
    padded : tuple of int
        Shape of the padded inputs [planes, images, rows, columns, C]; planes are a multiple of the
        stride.
    columns, strides : tuple of int
        Shape of the columns [stride, groups of planes, images, rows, width, kh, kw, C] and strides
        in bytes of the same in the padded inputs. Planes that are a stride apart come together:
        those that one place of the kernel reads are then neighbours.
    pixels : tuple of int
        Shape of a product without its channels: [planes, images, rows, width].
    starts : tuple of int
        For each place of the kernel along the depth, the first pixel of the columns that it reads.
    sums : tuple of tuple of Sums
        For each place of the kernel along the depth, how its columns are added to the padded
        inputs; none where the stride is 1.
    """

    outputs: Index
    within: Index
    inside: Index
    covered: bool
    padded: Ints
    columns: Ints
    strides: Ints
    pixels: Ints
    starts: Ints
    sums: tuple[tuple[Sums, ...], ...]


#: A batch in blocks: the images of each and what it reads.
Blocks = tuple[tuple[slice, Reads], ...]


def blocks(window: Window, x: Ints, inputs: slice, y: Ints, outputs: slice, limit: int,
           item: int) -> Blocks:
    """Cut the outputs of a group of channels into blocks.

    Parameters
    ----------
    x, y : tuple of int
        Shapes of inputs and outputs.
    inputs, outputs : slice
        The group's channels in them.
    limit : int
        Bytes of a block's columns, about.
    item : int
        Bytes of an item.
    """
    images, planes, rows, width = y[0], *((1, *y[2:]) if len(y) == 4 else y[2:])
    found: dict[Ints, Reads] = {}
    result = []
    for n, d, r in volume_blocks(images, planes, rows,
                                 window.row_items(width, inputs.stop - inputs.start),
                                 limit // item):
        key = (n.stop - n.start, d.start, d.stop, r.start, r.stop)
        if key not in found:
            found[key] = _reads(window, x, inputs, outputs, n.stop - n.start, d, r, width, item)
        result.append((n, found[key]))
    return tuple(result)


def _reads(window: Window, x: Ints, inputs: slice, outputs: slice, images: int, d: slice, r: slice,
           width: int, item: int) -> Reads:
    """What planes `d` and rows `r` of some images read."""
    (kd, kh, kw), (sd, sh, sw), (dd, dh, dw) = window.kernel, window.stride, window.dilation
    planes, rows, channels, whole = d.stop - d.start, r.stop - r.start, inputs.stop - inputs.start, slice(None)
    groups = -(-window.reach(0, planes) // sd)
    extents = (groups * sd, window.reach(1, rows), window.reach(2, width))
    overlaps = [_overlap(window, axis, first, extents[axis], extent)
                for axis, first, extent in _axes(x, d, r)]
    (inside_d, x_d), (inside_h, x_h), (inside_w, x_w) = overlaps
    # Bytes from a plane, an image, ... of the padded inputs to the next.
    pixel = item * channels
    line = pixel * extents[2]
    image = line * extents[1]
    plane = image * images
    pixels = (planes, images, rows, width)
    sums: list[tuple[Sums, ...]] = []
    if window.stride != (1, 1, 1):
        # Neighbouring taps go to neighbouring inputs in one run, up to the stride: beyond it, runs
        # of neighbouring outputs overlap.
        group = sw if dw == 1 else 1
        runs = [(a, b, min(group, kw - b) * channels) for a in range(kh)
                for b in range(0, kw, group)]
        sums = [
            tuple(
                Sums(
                    (..., a, slice(b * channels, b * channels + run)), (*pixels, run), (sd * plane, image, sh * line, sw * pixel, item),
                    u * dd * plane + a * dh * line + b * dw * pixel,
                )
                for a, b, run in runs
            )
            for u in range(kd)
        ]
    return Reads(
        outputs=(whole, outputs, None, r) if len(x) == 4 else (whole, outputs, d, r),
        within=(whole, inputs, None, x_h, x_w) if len(x) == 4 else (whole, inputs, x_d, x_h, x_w),
        inside=(inside_d, whole, inside_h, inside_w),
        covered=all(part == slice(0, extent) for (part, _), extent in zip(overlaps, extents, strict=True)),
        padded=(extents[0], images, *extents[1:], channels),
        columns=(sd, groups, images, rows, width, kh, kw, channels),
        strides=(plane, sd * plane, image, sh * line, sw * pixel, dh * line, dw * pixel, item),
        pixels=pixels,
        starts=tuple((u * dd % sd * groups + u * dd // sd) * images * rows * width for u in range(kd)),
        sums=tuple(sums),
    )


def _axes(x: Ints, d: slice, r: slice) -> list[tuple[int, int, int]]:
    """(axis, first output, inputs) for depth, height and width; an image has one plane."""
    inputs = (1, *x[2:]) if len(x) == 4 else x[2:]
    return list(zip(range(3), (d.start, r.start, 0), inputs, strict=True))


def _overlap(window: Window, axis: int, first: int, padded: int, inputs: int) -> tuple[slice, slice]:
    """The part of a padded extent that lies inside the inputs and where that is in the inputs (both
    empty if nowhere).
    """
    start = first * window.stride[axis] - window.before[axis]
    low = min(max(0, -start), padded)
    high = max(low, min(padded, inputs - start))
    # An empty part may lie outside the inputs: its slice must not become a negative index.
    return slice(low, high), slice(low + start, high + start) if high > low else slice(0, 0)
