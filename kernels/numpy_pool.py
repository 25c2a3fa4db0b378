"""Pooling as a loop over the window's places, each a strided view of a cache-sized block, one image axis after the other.

The windows are reduced along the last axis first, for every row of the input that is needed, then those results along the axis
before it: windows that overlap share all but the last reduction, and the first runs along contiguous rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcpar.kernels.interface import Array, Ints, PoolSpec
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch, flat_blocks

#: For a place of the window along one axis: the place, the outputs for which it is inside the input, the inputs that it reads.
Place = tuple[int, slice, slice]


def _places(axis: int, first: int, stop: int, inputs: int, spec: PoolSpec) -> list[Place]:
    """The places along one axis of the outputs [first, stop); slices of outputs count from `first`."""
    stride, before = spec.stride[axis], spec.pads[axis][0]
    found = []
    for place in range(spec.kernel[axis]):
        low = max(first, -((place - before) // stride))
        high = min(stop - 1, (inputs - 1 + before - place) // stride)
        if low <= high:
            start = low * stride + place - before
            found.append((place, slice(low - first, high + 1 - first), slice(start, start + (high - low) * stride + 1, stride)))
    return found


@dataclass(frozen=True)
class _Rows:
    """Outputs with some first indices (rows of images, planes of volumes), all of them where a channel fits the cache.

    Attributes
    ----------
    rows : slice
        The outputs.
    reads : slice
        First indices of the inputs that they read.
    places : list of list of Place
        Per image axis; those of the first axis count from the beginnings of `rows` and `reads`.
    planes : list of (slice, slice)
        Images and channels to do together: several small images, or some channels of one.
    """

    rows: slice
    reads: slice
    places: list[list[Place]]
    planes: list[tuple[slice, slice]]


def _blocks(x: Array, out: Array, spec: PoolSpec) -> Iterator[_Rows]:
    """Blocks that stay in the cache; outputs in no block read nothing of x."""
    if x.size == 0 or out.size == 0:
        return
    images, channels, extent = out.shape[:3]
    others = [_places(axis, 0, out.shape[2 + axis], x.shape[2 + axis], spec) for axis in range(1, x.ndim - 2)]
    row = max(math.prod(x.shape[3:]) * min(spec.stride[0], x.shape[2]), math.prod(out.shape[3:]))
    rows = min(extent, max(1, BLOCK_ITEMS // row))
    step = max(1, BLOCK_ITEMS // (row * rows)) if rows == extent else 1
    together = max(1, step // channels)
    planes = [(slice(n, n + together), slice(c, c + step)) for n in range(0, images, together) for c in range(0, channels, step)]
    for first in range(0, extent, rows):
        stop = min(first + rows, extent)
        down = _places(0, first, stop, x.shape[2], spec)
        low, high = min((i.start for _, _, i in down), default=0), max((i.stop for _, _, i in down), default=0)
        down = [(u, o, slice(i.start - low, i.stop - low, i.step)) for u, o, i in down]
        yield _Rows(slice(first, stop), slice(low, high), [down, *others], planes)


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    """The index of `part` along an image axis of an array [N, C, ...]."""
    return (slice(None),) * (2 + axis) + (part,)


def maxpool_forward(x: Array, spec: PoolSpec, out: Array, argmax: Array, scratch: Scratch) -> None:
    """See `Backend.maxpool_forward`; a NaN in a window is its maximum."""
    # Bytes are fast to compare and merge; large windows need two.
    kind = np.int8 if math.prod(spec.kernel) <= 127 else np.int16
    if x.size == 0:
        out[...] = -np.inf
        argmax[...] = 0
    for block in _blocks(x, out, spec):
        for n, c in block.planes:
            values, codes, to = x[n, c, block.reads], None, out[n, c, block.rows]
            for axis in reversed(range(x.ndim - 2)):
                best = _results(axis, values, to, scratch)
                place = scratch.get(f"place{axis}", best.shape, kind)
                best[...] = -np.inf
                place[...] = 0
                # Places are row-major codes: they grow along every axis, so the first maximum wins by a strict comparison.
                inner = math.prod(spec.kernel[axis + 1 :])
                for u, o, i in block.places[axis]:
                    into, reads = _along(axis, o), _along(axis, i)
                    code = kind(u * inner) if codes is None else codes[reads] + kind(u * inner) if u else codes[reads]
                    _take_larger(values[reads], code, best[into], place[into])
                values, codes = best, place
            argmax[n, c, block.rows] = codes


def _results(axis: int, values: Array, out: Array, scratch: Scratch) -> Array:
    """Where the windows over `values` go that are reduced along an axis: of the first axis, the last to be reduced, into `out`."""
    return out if axis == 0 else scratch.get(f"results{axis}", (*values.shape[: 2 + axis], *out.shape[2 + axis :]), out.dtype)


def _take_larger(candidate: Array, code: Array, best: Array, place: Array) -> None:
    """Merge candidates into the maxima so far; `place` becomes `code` where a candidate is strictly larger.

    Codes only grow, so the larger of two codes is the newer one: this needs no masked copy, which NumPy does not vectorise.
    np.maximum keeps a NaN of either side.
    """
    larger = np.greater(candidate, best).view(np.int8)
    np.maximum(place, larger * code, out=place)
    np.maximum(best, candidate, out=best)


def maxpool_backward(dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
    """See `Backend.maxpool_backward`; dx has no negative strides."""
    dx[...] = 0
    if dx.size == 0:
        return
    # dx as one line of memory, gaps and all: an element's place in it is the sum of its indices times these steps.
    steps = tuple(stride // dx.itemsize for stride in dx.strides)
    line = as_strided(dx, (1 + sum(step * (extent - 1) for step, extent in zip(steps, dx.shape, strict=True)),), (dx.itemsize,))
    places = np.unravel_index(np.arange(math.prod(spec.kernel)), spec.kernel)
    # Window corner and place in the window, both as distances in that line, so that adding them gives the input's.
    offset = sum(place * step for place, step in zip(places, steps[2:], strict=True))
    padded = any(before or after for before, after in spec.pads)
    for block in _blocks(dx, dy, spec):
        corners = _corners(dy.shape[3:], block.rows, spec)
        corner = sum(corner * step for corner, step in zip(corners, steps[2:], strict=True))
        for n, c in block.planes:
            gradient, place = dy[n, c, block.rows], argmax[n, c, block.rows]
            index = offset[place]
            index += corner
            images, channels = (np.arange(s.start, s.start + extent) for s, extent in zip((n, c), gradient.shape, strict=False))
            index += (images[:, None] * steps[0] + channels * steps[1]).reshape(*gradient.shape[:2], *(1,) * len(corners))
            if padded:
                inside = np.ones(gradient.shape, bool)
                for read, first, extent in zip(places, corners, dx.shape[2:], strict=True):
                    # Only a window without any finite maximum points into the padding.
                    inside &= (read[place] + first >= 0) & (read[place] + first < extent)
                index, gradient = index[inside], gradient[inside]
            np.add.at(line, index.reshape(-1), gradient.reshape(-1))


def _corners(others: Ints, rows: slice, spec: PoolSpec) -> list[Array]:
    """Per image axis the first index of the windows of some outputs, shaped to be broadcast over the image."""
    outputs = [np.arange(rows.start, rows.stop), *map(np.arange, others)]
    firsts = [out * stride - pad[0] for out, stride, pad in zip(outputs, spec.stride, spec.pads, strict=True)]
    return [first.reshape((-1,) + (1,) * (len(others) - axis)) for axis, first in enumerate(firsts)]


def _factors(scales: Sequence[Array], rows: slice) -> list[Array]:
    """Per image axis the factors of some outputs, shaped to be broadcast over the image."""
    parts = [scales[0][rows], *scales[1:]]
    return [part.reshape((-1,) + (1,) * (len(parts) - 1 - axis)) for axis, part in enumerate(parts)]


def avgpool_forward(x: Array, spec: PoolSpec, scales: Sequence[Array], out: Array, scratch: Scratch) -> None:
    """See `Backend.avgpool_forward`."""
    if x.size == 0:
        out[...] = 0
    for block in _blocks(x, out, spec):
        factors = _factors(scales, block.rows)
        for n, c in block.planes:
            values, to = x[n, c, block.reads], out[n, c, block.rows]
            for axis in reversed(range(x.ndim - 2)):
                sums = _results(axis, values, to, scratch)
                sums[...] = 0
                for _, o, i in block.places[axis]:
                    sums[_along(axis, o)] += values[_along(axis, i)]
                sums *= factors[axis]
                values = sums


def avgpool_backward(dy: Array, spec: PoolSpec, scales: Sequence[Array], dx: Array, scratch: Scratch) -> None:
    """See `Backend.avgpool_backward`."""
    dx[...] = 0
    for block in _blocks(dx, dy, spec):
        first, *others = _factors(scales, block.rows)
        for n, c in block.planes:
            gradient, target = dy[n, c, block.rows], dx[n, c, block.reads]
            values = np.multiply(gradient, first, out=scratch.get("scaled", gradient.shape, dy.dtype))
            for factor in others:
                values *= factor
            for axis in range(dx.ndim - 2):
                if axis == dx.ndim - 3:
                    sums = target
                else:
                    sums = scratch.get(f"results{axis}", (*target.shape[: 3 + axis], *values.shape[3 + axis :]), dy.dtype)
                    sums[...] = 0
                for _, o, i in block.places[axis]:
                    sums[_along(axis, i)] += values[_along(axis, o)]
                values = sums


def global_avgpool_forward(x: Array, out: Array) -> None:
    """See `Backend.global_avgpool_forward`."""
    np.sum(x, axis=tuple(range(2, x.ndim)), out=out)
    out *= 1 / max(1, math.prod(x.shape[2:]))


def global_avgpool_backward(dy: Array, dx: Array) -> None:
    """See `Backend.global_avgpool_backward`."""
    share = 1 / max(1, math.prod(dx.shape[2:]))
    gradient = np.broadcast_to(dy.reshape(dy.shape + (1,) * (dx.ndim - 2)), dx.shape)
    for to, of in flat_blocks(dx, gradient):
        np.multiply(of, dx.dtype.type(share), out=to)
