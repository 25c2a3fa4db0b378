"""Convolution on a GPU: im2col of a block of images, then a matrix product by cuBLAS.

An image is a volume of one plane. The matrix of a block has shape [channels * kd * kh * kw,
images * od * oh * ow], so one product covers all images of the block. The weight gradient needs no
sum over images. A 1 x 1 convolution of large images needs no such matrix: forward and backward to
the data it is a product per image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import cupy as cp

from hpcpar.kernels.cupy_launch import Launcher, three, view, volume
from hpcpar.kernels.interface import Array, ConvSpec, Segment, Tick

#: The im2col kernels index the columns of a block with 32 bits.
_MAX_COLUMNS = 2**31 - 1
#: Pixels from which on a matrix product per image fills cuBLAS's tiles, which are up to 128 wide.
_IMAGE_PRODUCT_PIXELS = 128


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


def _matmul_pixels(matrix: Array, x: Array) -> Array:
    """matrix @ x[n, :, pixel] for every image and pixel of x [N, C, D, H, W]."""
    y = cp.matmul(matrix, x.reshape(*x.shape[:2], math.prod(x.shape[2:])))
    return y.reshape(len(x), len(matrix), *x.shape[2:])


class CupyConv:
    """The convolution kernels.

    Parameters
    ----------
    launch
        Launcher of the im2col kernels.
    scratch_bytes
        Limit of the memory for the matrices of a block, which has at least one image.
    """

    def __init__(self, launch: Launcher, scratch_bytes: int) -> None:
        self.launch = launch
        self.scratch_bytes = scratch_bytes

    def _blocks(self, out: Array, rows: int) -> Iterator[slice]:
        """Blocks of images whose matrices, of `rows` rows in total, fit the scratch memory."""
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
        """The matrix of a group's input channels x; `out` gives the number of outputs."""
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
    def _is_pointwise(x: Array, y: Array, kernel: tuple[int, ...], spec: ConvSpec) -> bool:
        """Whether pixels of y read the same pixel of x alone, and the images are large."""
        return (math.prod(kernel) == math.prod(spec.stride) == 1 and x.shape[2:] == y.shape[2:]
                and not any(before for before, _ in spec.pads)
                and math.prod(y.shape[2:]) >= _IMAGE_PRODUCT_PIXELS)

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
        pointwise = self._is_pointwise(x, out, kernel, spec)
        for s in spec.segments:
            weights = _matrix(w, s)
            group_out = out[:, s.out_start : s.out_stop]
            if weights.size == 0:
                continue
            for block in self._blocks(out, sum(weights.shape)):
                to = group_out[block]
                part = x[block, s.in_start : s.in_stop]
                if pointwise:
                    y = _matmul_pixels(weights, part)
                else:
                    y = cp.matmul(weights, self._im2col(part, to, kernel, spec))
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
        # Where each input channel belongs to one group, the group overwrites it; otherwise groups
        # add to zeros.
        inputs = [(s.in_start, s.in_stop) for s in spec.segments if s.out_start < s.out_stop]
        add = dy.size == 0 or not covers(inputs, dx.shape[1])
        if add:
            dx.fill(0)
        if dy.size == 0:
            return
        dy, dx = volume(dy), volume(dx)
        kernel = three(w.shape[2:], 1)
        pointwise = not add and self._is_pointwise(dx, dy, kernel, spec)
        for s in spec.segments:
            weights = _matrix(w, s)
            if weights.size == 0:
                continue
            for block in self._blocks(dy, sum(weights.shape)):
                part, to = dy[block, s.out_start : s.out_stop], dx[block, s.in_start : s.in_stop]
                if pointwise:
                    to[...] = _matmul_pixels(weights.T, part)
                else:
                    cols = cp.matmul(weights.T, self._channels_first(part))
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
            dbias[...] = dy.sum(axis=(0, *range(2, dy.ndim)))
        if not covers([(s.out_start, s.out_stop) for s in spec.segments], dw.shape[0]):
            dw.fill(0)
        x, dy = volume(x), volume(dy)
        kernel = three(dw.shape[2:], 1)
        for s in spec.segments:
            grads = _matrix(dw, s)
            if grads.size == 0:
                continue
            for block in self._blocks(dy, sum(grads.shape)):
                part = dy[block, s.out_start : s.out_stop]
                cols = self._im2col(x[block, s.in_start : s.in_stop], part, kernel, spec)
                rows = self._channels_first(part)
                if block.start == 0:
                    cp.matmul(rows, cols.T, out=grads)
                else:
                    cp.add(grads, cp.matmul(rows, cols.T), out=grads)
                if tick is not None:
                    tick()
