"""What the windows of pooling read, in blocks that stay in the cache; worked out once for every
shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hpcpar.kernels.interface import Array, Ints, PoolSpec
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS

#: Shapes whose geometry is remembered: more than the different poolings of a large network.
SHAPES = 256
#: Planes of up to so many blocks are not cut into rows: a plane is read faster in one go than in
#: parts.
WHOLE = 4

Index = tuple[Any, ...]


class Place(NamedTuple):
    """A place of the window along one image axis.

    Attributes
    ----------
    code : int
        What it adds to the row-major place in the window.
    into, reads : Index
        The outputs for which it is inside the input, and the inputs that it reads; of arrays [N, C,
        ...].
    """

    code: int
    into: Index
    reads: Index


class Rows(NamedTuple):
    """Outputs with some first indices (rows of images, planes of volumes).

    Attributes
    ----------
    rows, reads : slice
        The outputs, and the first indices of the inputs that they read.
    places : tuple of tuple of Place
        Per image axis; those of the first axis count from the beginnings of `rows` and `reads`.
    starts : tuple of bool
        Per image axis, whether the first place of the window is inside the input for every output.
    """

    rows: slice
    reads: slice
    places: tuple[tuple[Place, ...], ...]
    starts: tuple[bool, ...]


class Cut(NamedTuple):
    """The outputs of a pooling cut into blocks: several small images, or some channels of one, or
    rows of one channel.

    Outputs in no block read nothing of x.
    """

    images: tuple[slice, ...]
    channels: tuple[slice, ...]
    rows: tuple[Rows, ...]

    def each(self) -> Iterator[tuple[slice, slice, int, Rows]]:
        """Images, channels, and number and rows of every block."""
        return ((n, c, i, rows) for n in self.images for c in self.channels
                for i, rows in enumerate(self.rows))


@lru_cache(maxsize=SHAPES)
def cut(x: Ints, out: Ints, spec: PoolSpec) -> Cut:
    """Blocks of a pooling from the shapes of its inputs and outputs."""
    if math.prod(x) == 0 or math.prod(out) == 0:
        return Cut((), (), ())
    images, channels, extent = out[:3]
    others = [_places(axis, 0, out[2 + axis], x[2 + axis], spec) for axis in range(1, len(x) - 2)]
    row = max(math.prod(x[3:]) * min(spec.stride[0], x[2]), math.prod(out[3:]))
    rows = extent if row * extent <= WHOLE * BLOCK_ITEMS else max(1, BLOCK_ITEMS // row)
    step = max(1, BLOCK_ITEMS // (row * rows)) if rows == extent else 1
    together = max(1, step // channels)
    found = []
    for first in range(0, extent, rows):
        stop = min(first + rows, extent)
        down = _places(0, first, stop, x[2], spec)
        reads = [place.reads[2] for place in down]
        low, high = min((i.start for i in reads), default=0), max((i.stop for i in reads), default=0)
        moved = [p._replace(reads=_along(0, slice(i.start - low, i.stop - low, i.step)))
                 for p, i in zip(down, reads, strict=True)]
        places = tuple(map(tuple, (moved, *others)))
        extents = (stop - first, *out[3:])
        starts = tuple(
            bool(of) and of[0].code == 0 and of[0].into[-1] == slice(0, outputs) for of, outputs in zip(places, extents, strict=True)
        )
        found.append(Rows(slice(first, stop), slice(low, high), places, starts))
    return Cut(
        tuple(slice(n, n + together) for n in range(0, images, together)),
        tuple(slice(c, c + step) for c in range(0, channels, step)),
        tuple(found),
    )


def _places(axis: int, first: int, stop: int, inputs: int, spec: PoolSpec) -> list[Place]:
    """The places along one axis of the outputs [first, stop), which count from `first`."""
    stride, before = spec.stride[axis], spec.pads[axis][0]
    inner = math.prod(spec.kernel[axis + 1:])
    found = []
    for place in range(spec.kernel[axis]):
        low = max(first, -((place - before) // stride))
        high = min(stop - 1, (inputs - 1 + before - place) // stride)
        if low <= high:
            start = low * stride + place - before
            into, reads = slice(low - first, high + 1 - first), slice(start, start + (high - low) * stride + 1, stride)
            found.append(Place(place * inner, _along(axis, into), _along(axis, reads)))
    return found


def _along(axis: int, part: slice) -> Index:
    """The index of `part` along an image axis of an array [N, C, ...]."""
    return (slice(None),) * (2 + axis) + (part,)


class Targets(NamedTuple):
    """Where the windows' places are in the memory of the inputs, as distances in items.

    Attributes
    ----------
    offset : array
        [places of a window] from the window's corner.
    planes : array
        [images of a block, channels of a block, 1, ...] from a block's first plane.
    corners : tuple of array
        For the rows of every block the windows' corners from the beginning of a plane [rows, ...].
    outside : tuple of array or None
        For the rows of every block the windows whose corner lies in the padding; None where there
        are none.
    """

    offset: Array
    planes: Array
    corners: tuple[Array, ...]
    outside: tuple[Array | None, ...]


@lru_cache(maxsize=SHAPES)
def targets(x: Ints, out: Ints, steps: Ints, spec: PoolSpec) -> Targets:
    """The places of windows in inputs [N, C, ...] whose indices are `steps` items apart."""
    made = cut(x, out, spec)
    inner = (1,) * (len(x) - 2)
    places = np.unravel_index(np.arange(math.prod(spec.kernel)), spec.kernel)
    offset = sum(place * step for place, step in zip(places, steps[2:], strict=True))
    images, channels = (min(extent, parts[0].stop) if parts else 0
                        for extent, parts in zip(x, made[:2], strict=False))
    planes = np.add.outer(np.arange(images) * steps[0],
                          np.arange(channels) * steps[1]).reshape(images, channels, *inner)
    corners, outside = [], []
    for block in made.rows:
        firsts = _corners(out[3:], block.rows, spec)
        corners.append(sum(first * step for first, step in zip(firsts, steps[2:], strict=True)))
        padding = np.zeros(np.broadcast_shapes(*(first.shape for first in firsts)), bool)
        for first, extent in zip(firsts, x[2:], strict=True):
            padding |= (first < 0) | (first >= extent)
        outside.append(padding if padding.any() else None)
    return Targets(offset, planes, tuple(corners), tuple(outside))


def _corners(others: Ints, rows: slice, spec: PoolSpec) -> list[Array]:
    """Per image axis the first index of the windows of some outputs, shaped to be broadcast over
    the image.
    """
    outputs = [np.arange(rows.start, rows.stop), *map(np.arange, others)]
    firsts = [out * stride - pad[0] for out, stride, pad in zip(outputs, spec.stride, spec.pads,
                                                                strict=True)]
    return [first.reshape((-1,) + (1,) * (len(others) - axis)) for axis, first in enumerate(firsts)]
