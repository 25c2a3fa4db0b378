"""Pooling as a loop over the window's places, each a strided view of a cache-sized block, one image
axis after the other.

The windows are reduced along the last axis first, for every row of the input that is needed, then
those results along the axis before it: windows that overlap share all but the last reduction, and
the first runs along contiguous rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcpar.kernels.interface import Array, PoolSpec
from hpcpar.kernels.numpy_blocks import Scratch, flat_blocks
from hpcpar.kernels.numpy_window_offsets import cut, targets


def maxpool_forward(x: Array, spec: PoolSpec, out: Array, argmax: Array, scratch: Scratch) -> None:
    """See `Backend.maxpool_forward`; a NaN in a window is its maximum."""
    # Bytes are fast to compare and merge; large windows need two.
    kind = np.int8 if math.prod(spec.kernel) <= 127 else np.int16
    if x.size == 0:
        out[...] = -np.inf
        argmax[...] = 0
    for n, c, _, block in cut(x.shape, out.shape, spec).each():
        values, codes, to = x[n, c, block.reads], None, out[n, c, block.rows]
        for axis in reversed(range(x.ndim - 2)):
            best = _results(axis, values, to, scratch)
            place = scratch.get(f"place{axis}", best.shape, kind)
            places = block.places[axis]
            if block.starts[axis]:
                # Whatever is in the window's first place is the first maximum so far.
                best[...] = values[places[0].reads]
                place[...] = 0 if codes is None else codes[places[0].reads]
                places = places[1:]
            else:
                best[...] = -np.inf
                place[...] = 0
            # Places are row-major codes: they grow along every axis, so the first maximum wins by a
            # strict comparison.
            for u, into, reads in places:
                code = kind(u) if codes is None else codes[reads] + kind(u) if u else codes[reads]
                _take_larger(values[reads], code, best[into], place[into])
            values, codes = best, place
        argmax[n, c, block.rows] = codes


def _results(axis: int, values: Array, out: Array, scratch: Scratch) -> Array:
    """Where the windows over `values` go that are reduced along an axis: of the first axis, the
    last to be reduced, into `out`.
    """
    return out if axis == 0 else scratch.get(f"results{axis}",
                                             (*values.shape[: 2 + axis], *out.shape[2 + axis :]),
                                             out.dtype)


def _take_larger(candidate: Array, code: Array, best: Array, place: Array) -> None:
    """Merge candidates into the maxima so far; `place` becomes `code` where a candidate is strictly
    larger.

    Codes only grow, so the larger of two codes is the newer one: this needs no masked copy, which
    NumPy does not vectorise. np.maximum keeps a NaN of either side.
    """
    larger = np.greater(candidate, best).view(np.int8)
    np.maximum(place, larger * code, out=place)
    np.maximum(best, candidate, out=best)


def maxpool_backward(dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
    """See `Backend.maxpool_backward`; dx has no negative strides."""
    dx[...] = 0
    if dx.size == 0:
        return
    # dx as one line of memory, gaps and all: an element's place in it is the sum of its indices
    # times these steps.
    steps = tuple([stride // dx.itemsize for stride in dx.strides])
    if dx.flags.c_contiguous:
        line = dx.reshape(-1)
    else:
        line = as_strided(dx, (1 + sum(step * (extent - 1) for step, extent in zip(steps, dx.shape, strict=True)),), (dx.itemsize,))
    made = targets(dx.shape, dy.shape, steps, spec)
    for n, c, rows, block in cut(dx.shape, dy.shape, spec).each():
        gradient, place = dy[n, c, block.rows], argmax[n, c, block.rows]
        # Window corner and place in the window, both as distances in that line, so that adding them
        # gives the input's.
        index = made.offset[place]
        index += made.corners[rows]
        index += made.planes[: len(gradient), : gradient.shape[1]]
        index += n.start * steps[0] + c.start * steps[1]
        outside = made.outside[rows]
        if outside is not None:
            # Only a window without any finite maximum points into the padding: to its first place.
            inside = (place != 0) | ~outside
            if not inside.all():
                index, gradient = index[inside], gradient[inside]
        np.add.at(line, index.reshape(-1), gradient.reshape(-1))


def avgpool_forward(x: Array, spec: PoolSpec, scales: Sequence[Array], out: Array,
                    scratch: Scratch) -> None:
    """See `Backend.avgpool_forward`."""
    if x.size == 0:
        out[...] = 0
    for n, c, _, block in cut(x.shape, out.shape, spec).each():
        values, to, factors = x[n, c, block.reads], out[n, c, block.rows], _factors(scales, block.rows)
        for axis in reversed(range(x.ndim - 2)):
            sums, places = _results(axis, values, to, scratch), block.places[axis]
            if block.starts[axis]:
                np.add(values[places[0].reads], 0, out=sums)
                places = places[1:]
            else:
                sums[...] = 0
            for _, into, reads in places:
                sums[into] += values[reads]
            sums *= factors[axis]
            values = sums


def avgpool_backward(dy: Array, spec: PoolSpec, scales: Sequence[Array], dx: Array,
                     scratch: Scratch) -> None:
    """See `Backend.avgpool_backward`."""
    dx[...] = 0
    for n, c, _, block in cut(dx.shape, dy.shape, spec).each():
        first, *others = _factors(scales, block.rows)
        gradient, target = dy[n, c, block.rows], dx[n, c, block.reads]
        values = np.multiply(gradient, first, out=scratch.get("scaled", gradient.shape, dy.dtype))
        for factor in others:
            values *= factor
        for axis in range(dx.ndim - 2):
            if axis == dx.ndim - 3:
                sums = target
            else:
                sums = scratch.get(f"results{axis}",
                                   (*target.shape[: 3 + axis], *values.shape[3 + axis :]), dy.dtype)
                sums[...] = 0
            for _, into, reads in block.places[axis]:
                sums[reads] += values[into]
            values = sums


def _factors(scales: Sequence[Array], rows: slice) -> list[Array]:
    """Per image axis the factors of some outputs, shaped to be broadcast over the image."""
    parts = [scales[0][rows], *scales[1:]]
    return [part.reshape((-1,) + (1,) * (len(parts) - 1 - axis)) for axis, part in enumerate(parts)]


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
