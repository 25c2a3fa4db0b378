"""Pooling as a loop over the window's places, each a strided view of a cache-sized block of planes.

The rows of a window are reduced first, for every row of the input, then those results along the columns: windows that
overlap share the first half, and the second half runs along contiguous rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.kernels.interface import Array, PoolSpec
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch


def _places(axis: int, outputs: int, inputs: int, spec: PoolSpec) -> Iterator[tuple[int, slice, slice]]:
    """For each place of the window along one axis: the outputs for which it is inside the input, and the inputs it reads."""
    stride, before = spec.stride[axis], spec.pads[axis][0]
    for place in range(spec.kernel[axis]):
        first = max(0, -((place - before) // stride))
        last = min(outputs - 1, (inputs - 1 + before - place) // stride)
        if first <= last:
            start = first * stride + place - before
            yield place, slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def _plane_blocks(x: Array, out: Array) -> Iterator[tuple[slice, slice]]:
    """(images, channels) such that their planes together stay in the cache: several small images, or some channels of one."""
    if x.size == 0 or out.size == 0:
        return
    step = max(1, BLOCK_ITEMS // max(x.shape[2] * x.shape[3], out.shape[2] * out.shape[3]))
    images = max(1, step // x.shape[1])
    for image in range(0, x.shape[0], images):
        for start in range(0, x.shape[1], step):
            yield slice(image, image + images), slice(start, start + step)


def maxpool_forward(x: Array, spec: PoolSpec, out: Array, argmax: Array, scratch: Scratch) -> None:
    """See `Backend.maxpool_forward`; a NaN in a window is its maximum."""
    (rows, width), (out_rows, out_width) = x.shape[2:], out.shape[2:]
    down = list(_places(0, out_rows, rows, spec))
    across = list(_places(1, out_width, width, spec))
    # Bytes are fast to compare and merge; large windows need two.
    kind = np.int8 if spec.kernel[0] * spec.kernel[1] <= 127 else np.int16
    if x.size == 0 or not down or not across:
        out[...] = -np.inf
        argmax[...] = 0
        return
    for images, c in _plane_blocks(x, out):
        part, block, index = x[images, c], out[images, c], argmax[images, c]
        best = scratch.get("best", (*part.shape[:2], rows, out_width), x.dtype)
        place_w = scratch.get("place_w", best.shape, kind)
        best[...] = -np.inf
        place_w[...] = across[0][0]
        for v, o, i in across:
            _take_larger(part[..., i], kind(v), best[..., o], place_w[..., o])
        block[...] = -np.inf
        place = scratch.get("place", block.shape, kind)
        place[...] = 0
        # The places are row-major codes u * width + v: they grow with u, so the first maximum wins by a strict comparison.
        place_w += down[0][0] * spec.kernel[1]
        for k, (u, o, i) in enumerate(down):
            if k:
                place_w += (u - down[k - 1][0]) * spec.kernel[1]
            _take_larger(best[:, :, i], place_w[:, :, i], block[:, :, o], place[:, :, o])
        index[...] = place


def _take_larger(candidate: Array, code: Array, best: Array, place: Array) -> None:
    """Merge candidates into the maxima so far; `place` becomes `code` where a candidate is strictly larger.

    Codes only grow, so the larger of two codes is the newer one: this needs no masked copy, which NumPy does not vectorise.
    np.maximum keeps a NaN of either side.
    """
    larger = np.greater(candidate, best).view(np.int8)
    np.maximum(place, larger * code, out=place)
    np.maximum(best, candidate, out=best)


def maxpool_backward(dy: Array, argmax: Array, spec: PoolSpec, dx: Array) -> None:
    """See `Backend.maxpool_backward`."""
    dx[...] = 0
    kh, kw = spec.kernel
    rows, width = dx.shape[2:]
    top = np.arange(dy.shape[2]) * spec.stride[0] - spec.pads[0][0]
    left = np.arange(dy.shape[3]) * spec.stride[1] - spec.pads[1][0]
    codes = np.arange(kh * kw)
    # Window corner and place in the window, both as distances in a flat plane, so that adding them gives the input's.
    corner = (top * width)[:, None] + left
    offset = codes // kw * width + codes % kw
    for images, c in _plane_blocks(dx, dy):
        planes = dx[images, c]
        flat = planes if planes.flags.c_contiguous else np.zeros(planes.shape, dx.dtype)
        place = argmax[images, c]
        index = offset[place]
        index += corner
        index += (np.arange(planes.shape[0] * planes.shape[1]) * (rows * width)).reshape(*planes.shape[:2], 1, 1)
        gradient = dy[images, c]
        if any(before for before, _ in spec.pads) or any(after for _, after in spec.pads):
            row, col = top[:, None] + place // kw, left + place % kw
            inside = (row >= 0) & (row < rows) & (col >= 0) & (col < width)
            # Only a window without any finite maximum points into the padding.
            index, gradient = index[inside], gradient[inside]
        np.add.at(flat.reshape(-1), index.reshape(-1), gradient.reshape(-1))
        if flat is not planes:
            planes[...] = flat


def avgpool_forward(x: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, out: Array, scratch: Scratch) -> None:
    """See `Backend.avgpool_forward`."""
    down = list(_places(0, out.shape[2], x.shape[2], spec))
    across = list(_places(1, out.shape[3], x.shape[3], spec))
    if x.size == 0:
        out[...] = 0
    for images, c in _plane_blocks(x, out):
        part, block = x[images, c], out[images, c]
        sums = scratch.get("sums", (*part.shape[:3], out.shape[3]), x.dtype)
        sums[...] = 0
        for _, o, i in across:
            sums[..., o] += part[..., i]
        sums *= scale_w
        block[...] = 0
        for _, o, i in down:
            block[:, :, o] += sums[:, :, i]
        block *= scale_h[:, None]


def avgpool_backward(dy: Array, spec: PoolSpec, scale_h: Array, scale_w: Array, dx: Array, scratch: Scratch) -> None:
    """See `Backend.avgpool_backward`."""
    down = list(_places(0, dy.shape[2], dx.shape[2], spec))
    across = list(_places(1, dy.shape[3], dx.shape[3], spec))
    dx[...] = 0
    for images, c in _plane_blocks(dx, dy):
        part, block = dy[images, c], dx[images, c]
        scaled = np.multiply(part, scale_w, out=scratch.get("best", part.shape, dy.dtype))
        scaled *= scale_h[:, None]
        sums = scratch.get("sums", (*block.shape[:3], dy.shape[3]), dy.dtype)
        sums[...] = 0
        for _, o, i in down:
            sums[:, :, i] += scaled[:, :, o]
        for _, o, i in across:
            block[..., i] += sums[..., o]
