"""Pooling as a loop over window offsets, each a strided view of a cache-sized block.

Windows are reduced along one image axis after the other, last axis first. Overlapping windows thus
share all reductions but the last, and the first reduction runs along contiguous rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcpar.kernels.geometry import PoolSpec
from hpcpar.kernels.interface import Array
from hpcpar.kernels.numpy_blocks import Scratch, flat_blocks
from hpcpar.kernels.numpy_pool_windows import pool_blocks, scatter_index


def maxpool_forward(scratch: Scratch, x: Array, spec: PoolSpec, out: Array, argmax: Array) -> None:
    # Single bytes are fast to compare and merge; large windows need two bytes per offset.
    code_type = np.int8 if math.prod(spec.kernel) <= 127 else np.int16
    if x.size == 0:
        out[...] = -np.inf
        argmax[...] = 0
    for n, c, _, block in pool_blocks(x.shape, out.shape, spec).each():
        values, codes, target = x[n, c, block.reads], None, out[n, c, block.rows]
        for axis in reversed(range(x.ndim - 2)):
            best = _reduced(axis, values, target, scratch)
            best_code = scratch.get(f"code{axis}", best.shape, code_type)
            offsets = block.offsets[axis]
            if block.complete[axis]:
                # The maximum so far is the element at the first window offset.
                reads = offsets[0].reads
                best[...] = values[reads]
                best_code[...] = 0 if codes is None else codes[reads]
                offsets = offsets[1:]
            else:
                best[...] = -np.inf
                best_code[...] = 0
            # Codes are row-major offsets, which grow along each axis. With a strict comparison, the
            # first of equal maxima wins.
            for u, outputs, reads in offsets:
                code = code_type(u) if codes is None else codes[reads] + code_type(u)
                _merge_larger(values[reads], code, best[outputs], best_code[outputs])
            values, codes = best, best_code
        argmax[n, c, block.rows] = codes


def _reduced(axis: int, values: Array, out: Array, scratch: Scratch) -> Array:
    """Array for the reduction of `values` along an axis; `out` for axis 0, which is the last."""
    if axis == 0:
        return out
    shape = (*values.shape[: 2 + axis], *out.shape[2 + axis :])
    return scratch.get(f"reduced{axis}", shape, out.dtype)


def _merge_larger(candidate: Array, code: Array, best: Array, best_code: Array) -> None:
    """Update the maxima and their codes where a candidate is strictly larger.

    A candidate's code is at least the code of the maximum so far, so np.maximum also merges codes;
    a masked copy would not be vectorized. np.maximum propagates NaN.
    """
    larger = np.greater(candidate, best).view(np.int8)
    np.maximum(best_code, larger * code, out=best_code)
    np.maximum(best, candidate, out=best)


def maxpool_backward(dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
    """See `Backend.maxpool_backward`; dx has no negative strides."""
    dx[...] = 0
    if dx.size == 0:
        return
    # `flat` is the memory of dx, including gaps. The index of an element in it is the sum of its
    # indices times the strides.
    strides = tuple(stride // dx.itemsize for stride in dx.strides)
    if dx.flags.c_contiguous:
        flat = dx.reshape(-1)
    else:
        span = 1 + sum(stride * (extent - 1)
                       for stride, extent in zip(strides, dx.shape, strict=True))
        flat = as_strided(dx, (span,), (dx.itemsize,))
    scatter = scatter_index(dx.shape, dy.shape, strides, spec)
    for n, c, i, block in pool_blocks(dx.shape, dy.shape, spec).each():
        gradient, offset = dy[n, c, block.rows], argmax[n, c, block.rows]
        index = scatter.offset[offset]
        index += scatter.corners[i]
        index += scatter.planes[: len(gradient), : gradient.shape[1]]
        index += n.start * strides[0] + c.start * strides[1]
        outside = scatter.outside[i]
        if outside is not None:
            # A window without a finite maximum has offset 0, which may be in the padding.
            inside = (offset != 0) | ~outside
            if not inside.all():
                index, gradient = index[inside], gradient[inside]
        np.add.at(flat, index.reshape(-1), gradient.reshape(-1))


def avgpool_forward(scratch: Scratch, x: Array, spec: PoolSpec, scales: Sequence[Array],
                    out: Array) -> None:
    if x.size == 0:
        out[...] = 0
    for n, c, _, block in pool_blocks(x.shape, out.shape, spec).each():
        values, target = x[n, c, block.reads], out[n, c, block.rows]
        factors = _factors(scales, block.rows)
        for axis in reversed(range(x.ndim - 2)):
            sums, offsets = _reduced(axis, values, target, scratch), block.offsets[axis]
            if block.complete[axis]:
                np.add(values[offsets[0].reads], 0, out=sums)
                offsets = offsets[1:]
            else:
                sums[...] = 0
            for _, outputs, reads in offsets:
                sums[outputs] += values[reads]
            sums *= factors[axis]
            values = sums


def avgpool_backward(scratch: Scratch, dy: Array, spec: PoolSpec, scales: Sequence[Array],
                     dx: Array) -> None:
    dx[...] = 0
    for n, c, _, block in pool_blocks(dx.shape, dy.shape, spec).each():
        first, *others = _factors(scales, block.rows)
        gradient, target = dy[n, c, block.rows], dx[n, c, block.reads]
        values = np.multiply(gradient, first, out=scratch.get("scaled", gradient.shape, dy.dtype))
        for factor in others:
            values *= factor
        for axis in range(dx.ndim - 2):
            if axis == dx.ndim - 3:
                sums = target
            else:
                shape = (*target.shape[: 3 + axis], *values.shape[3 + axis :])
                sums = scratch.get(f"reduced{axis}", shape, dy.dtype)
                sums[...] = 0
            for _, outputs, reads in block.offsets[axis]:
                sums[reads] += values[outputs]
            values = sums


def _factors(scales: Sequence[Array], rows: slice) -> list[Array]:
    """The scales of the outputs `rows` per image axis, shaped to broadcast over the image."""
    parts = [scales[0][rows], *scales[1:]]
    return [part.reshape((-1,) + (1,) * (len(parts) - 1 - axis)) for axis, part in enumerate(parts)]


def global_avgpool_forward(x: Array, out: Array) -> None:
    np.sum(x, axis=tuple(range(2, x.ndim)), out=out)
    out *= 1 / max(1, math.prod(x.shape[2:]))


def global_avgpool_backward(dy: Array, dx: Array) -> None:
    share = 1 / max(1, math.prod(dx.shape[2:]))
    gradient = np.broadcast_to(dy.reshape(dy.shape + (1,) * (dx.ndim - 2)), dx.shape)
    for target, source in flat_blocks(dx, gradient):
        np.multiply(source, dx.dtype.type(share), out=target)
