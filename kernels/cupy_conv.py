"""Convolution on a GPU: im2col of a block of images, then a matrix product.

An image is a volume with one plane. The matrix of a block has shape [channels * kd * kh * kw,
images * od * oh * ow], so one product covers all images of the block, and also sums the weight
gradient over them. A 1 x 1 convolution of large images does not need this matrix: it multiplies the
pixels of each image in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import cupy as cp

from hpcpar.kernels.cupy_launch import Launcher, three, view, volume
from hpcpar.kernels.cupy_products import Multiply
from hpcpar.kernels.geometry import ConvSpec, Segment
from hpcpar.kernels.interface import Array, Tick, address

#: The im2col kernels index the columns of a block with 32 bits.
_MAX_COLUMNS = 2**31 - 1
#: Smallest number of pixels for which a matrix product per image is fast; in the weight gradient
#: it is the length of the sums.
_IMAGE_PRODUCT_PIXELS, _WEIGHT_PRODUCT_PIXELS = 48, 128


def covers(intervals: list[tuple[int, int]], extent: int) -> bool:
    """Whether the intervals partition [0, extent)."""
    end = 0
    for start, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if start != end:
            return False
        end = stop
    return end == extent


def _matrix(w: Array, segment: Segment) -> Array:
    """View of a group's weights as a matrix [outputs, channels * kernel size]."""
    rows = segment.out_stop - segment.out_start
    return w[segment.out_start : segment.out_stop].reshape(rows, math.prod(w.shape[1:]))


class CupyConv:
    """The convolution kernels.

    Parameters
    ----------
    launch
        Launcher of the im2col kernels.
    scratch_bytes
        Memory limit for the matrices of a block. A block has at least one image.
    multiply
        Multiplies matrices.
    """

    def __init__(self, launch: Launcher, scratch_bytes: int, multiply: Multiply) -> None:
        self.launch = launch
        self.scratch_bytes = scratch_bytes
        self._multiply = multiply

    def _product(self, left: Array, right: Array) -> Array:
        """left @ right, of matrices or batches."""
        batch = (left if left.ndim == 3 else right).shape[:-2]
        out = cp.empty((*batch, left.shape[-2], right.shape[-1]), left.dtype)
        self._multiply(left, right, out)
        return out

    def _matmul_pixels(self, matrix: Array, x: Array) -> Array:
        """matrix @ x[n, :, pixel] for every image and pixel of x [N, C, D, H, W]."""
        y = self._product(matrix, x.reshape(*x.shape[:2], math.prod(x.shape[2:])))
        return y.reshape(len(x), len(matrix), *x.shape[2:])

    def _blocks(self, out: Array, rows: int) -> Iterator[slice]:
        """Blocks of images whose matrices, with `rows` rows in total, fit in the scratch memory."""
        pixels = math.prod(out.shape[2:])
        fitting = self.scratch_bytes // (rows * pixels * out.itemsize)
        size = max(1, min(fitting, _MAX_COLUMNS // pixels))
        for start in range(0, len(out), size):
            yield slice(start, min(start + size, len(out)))

    @staticmethod
    def _geometry(x: Array, out: Array, kernel: tuple[int, ...], spec: ConvSpec) -> tuple[int, ...]:
        """Arguments of the GEOMETRY macro."""
        before = three([pad[0] for pad in spec.pads], 0)
        return (*x.shape, *out.shape[2:], *kernel, *three(spec.stride, 1), *three(spec.dilation, 1),
                *before)

    def _im2col(self, x: Array, out: Array, kernel: tuple[int, ...], spec: ConvSpec) -> Array:
        """The im2col matrix of a group's input channels x, for the outputs of `out`."""
        pixels = x.shape[0] * math.prod(out.shape[2:])
        cols = cp.empty((x.shape[1] * math.prod(kernel), pixels), x.dtype)
        args = (*view(x), cols, *self._geometry(x, out, kernel, spec))
        self.launch("im2col", x.dtype, pixels, args, rows=x.shape[1])
        return cols

    @staticmethod
    def _channels_first(y: Array) -> Array:
        """A contiguous matrix [channels, images * od * oh * ow] of an output gradient."""
        pixels = y.shape[0] * math.prod(y.shape[2:])
        return cp.ascontiguousarray(y.swapaxes(0, 1)).reshape(y.shape[1], pixels)

    @staticmethod
    def _pixels(x: Array, y: Array, kernel: tuple[int, ...], spec: ConvSpec) -> Array | None:
        """The pixels of x that y reads, one each; None if the kernel is larger, or y is small."""
        if (math.prod(kernel) != 1 or any(before for before, _ in spec.pads)
                or math.prod(y.shape[2:]) < _IMAGE_PRODUCT_PIXELS):
            return None
        box = (..., *(slice(0, (extent - 1) * step + 1, step) for extent, step in zip(
            y.shape[2:], three(spec.stride, 1), strict=True)))
        read = x[box]
        return read if read.shape[2:] == y.shape[2:] else None

    def is_faster_to_data(self, dx: Array, w: Array, dy: Array, spec: ConvSpec) -> bool:
        """Whether matrix products beat cuDNN's deterministic engines in full precision."""
        return (math.prod(spec.stride) > 1 and len(spec.segments) == 1 and dy.size > 0
                and self._pixels(volume(dx), volume(dy), w.shape[2:], spec) is not None)

    def is_faster_to_weight(self, x: Array, dw: Array, dy: Array, spec: ConvSpec) -> bool:
        """The same for the weight gradient."""
        return (len(spec.segments) == 1 and dy.size > 0
                and math.prod(dy.shape[2:]) >= _WEIGHT_PRODUCT_PIXELS
                and self._pixels(volume(x), volume(dy), dw.shape[2:], spec) is not None)

    def forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                tick: Tick | None = None) -> None:
        """See `Backend.conv_forward`."""
        if out.size == 0:
            return
        outputs = [(s.out_start, s.out_stop) for s in spec.segments]
        if w.shape[1] == 0 or not covers(outputs, out.shape[1]):
            out[...] = 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2))
        x, out = volume(x), volume(out)
        kernel = three(w.shape[2:], 1)
        pixels = self._pixels(x, out, kernel, spec)
        for s in spec.segments:
            weights = _matrix(w, s)
            group_out = out[:, s.out_start : s.out_stop]
            if weights.size == 0:
                continue
            for block in self._blocks(out, sum(weights.shape)):
                to = group_out[block]
                if pixels is not None:
                    y = self._matmul_pixels(weights, pixels[block, s.in_start : s.in_stop])
                else:
                    part = x[block, s.in_start : s.in_stop]
                    y = self._product(weights, self._im2col(part, to, kernel, spec))
                    y = y.reshape(to.shape[1], to.shape[0], *to.shape[2:]).swapaxes(0, 1)
                if bias is None:
                    to[...] = y
                else:
                    cp.add(y, bias[s.out_start : s.out_stop, None, None, None], out=to)
                if tick is not None:
                    tick()

    def backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                      tick: Tick | None = None) -> None:
        """See `Backend.conv_backward_data`."""
        if dx.size == 0:
            return
        # If each input channel belongs to exactly one group, the group overwrites dx. Otherwise all
        # groups add to zeros.
        inputs = [(s.in_start, s.in_stop) for s in spec.segments if s.out_start < s.out_stop]
        add = dy.size == 0 or not covers(inputs, dx.shape[1])
        if add:
            dx.fill(0)
        if dy.size == 0:
            return
        dy, dx = volume(dy), volume(dx)
        kernel = three(w.shape[2:], 1)
        pixels = None if add else self._pixels(dx, dy, kernel, spec)
        if pixels is not None and pixels.size < dx.size:
            dx.fill(0)
        for s in spec.segments:
            weights = _matrix(w, s)
            if weights.size == 0:
                continue
            for block in self._blocks(dy, sum(weights.shape)):
                part, to = dy[block, s.out_start : s.out_stop], dx[block, s.in_start : s.in_stop]
                if pixels is not None:
                    pixels[block, s.in_start : s.in_stop] = self._matmul_pixels(weights.T, part)
                else:
                    cols = self._product(weights.T, self._channels_first(part))
                    items = to.shape[0] * math.prod(to.shape[2:])
                    args = (cols, *view(to), int(add), *self._geometry(to, part, kernel, spec))
                    self.launch("col2im", dx.dtype, items, args, rows=to.shape[1])
                if tick is not None:
                    tick()

    def backward_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None,
                        tick: Tick | None = None) -> None:
        """See `Backend.conv_backward_weight`."""
        if dy.size == 0:
            dw.fill(0)
            if dbias is not None:
                dbias.fill(0)
            return
        if dbias is not None:
            dy.sum(axis=(0, *range(2, dy.ndim)), out=dbias)
        if not covers([(s.out_start, s.out_stop) for s in spec.segments], dw.shape[0]):
            dw.fill(0)
        x, dy = volume(x), volume(dy)
        kernel = three(dw.shape[2:], 1)
        pixels = self._pixels(x, dy, kernel, spec)
        for s in spec.segments:
            grads = _matrix(dw, s)
            if grads.size == 0:
                continue
            for block in self._blocks(dy, sum(grads.shape)):
                part = dy[block, s.out_start : s.out_stop]
                if pixels is not None:
                    total = self._products(part, pixels[block, s.in_start : s.in_stop])
                else:
                    cols = self._im2col(x[block, s.in_start : s.in_stop], part, kernel, spec)
                    total = self._product(self._channels_first(part), cols.T)
                if block.start == 0:
                    grads[...] = total
                else:
                    cp.add(grads, total, out=grads)
                if tick is not None:
                    tick()

    def prepare_weight(self, x: Array, dy: Array, spec: ConvSpec, dw: Array) -> Tick | None:
        """The weight gradient of one group as one product per image, for arrays that keep their
        memory; None where that needs copies or several blocks.
        """
        x, dy, (s,) = volume(x), volume(dy), spec.segments
        pixels, grads = self._pixels(x, dy, three(dw.shape[2:], 1), spec), _matrix(dw, s)
        if pixels is None or len(grads) < len(dw) or (
                len(list(self._blocks(dy, sum(grads.shape)))) > 1) or (
                len(dy) * grads.nbytes > self.scratch_bytes):
            return None
        sources = dy[:, s.out_start : s.out_stop], pixels[:, s.in_start : s.in_stop]
        left, right = (a.reshape(*a.shape[:2], math.prod(a.shape[2:])) for a in sources)
        if any(address(a) != address(b) for a, b in zip((left, right), sources, strict=True)):
            return None
        right = right.swapaxes(1, 2)

        def multiply() -> None:
            self._product(left, right).sum(axis=0, out=grads)

        return multiply

    def _products(self, y: Array, x: Array) -> Array:
        """The sums [K, C] over images and pixels of y [N, K, ...] times x [N, C, ...]."""
        left, right = (a.reshape(*a.shape[:2], math.prod(a.shape[2:])) for a in (y, x))
        step = max(1, self.scratch_bytes // (left.shape[1] * right.shape[1] * y.itemsize))
        total = None
        for start in range(0, len(y), step):
            images = slice(start, start + step)
            part = self._product(left[images], right[images].swapaxes(1, 2)).sum(axis=0)
            total = part if total is None else total + part
        return total
