"""Convolution on a GPU: a block of images at a time is lowered to a matrix, and cuBLAS multiplies.

An image is a volume of one plane. The matrix of a block is [channels * kd * kh * kw, images * od *
oh * ow]: one long product per block, also for the weights' gradient, needs neither a product per
image nor a sum over images afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import cupy as cp

from hpcpar.kernels.cupy_launch import Launcher, three, view, volume
from hpcpar.kernels.interface import Array, ConvSpec, Segment, Tick

#: The lowering kernels count a block's places in 32 bits.
_MAX_PLACES = 2**31 - 1


def covers(intervals: list[tuple[int, int]], extent: int) -> bool:
    """Whether the intervals hold every channel of [0, extent) exactly once."""
    end = 0
    for start, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if start != end:
            return False
        end = stop
    return end == extent


def _matrix(w: Array, segment: Segment) -> Array:
    """A group's weights as a matrix [outputs, channels * places of the kernel], a view."""
    return w[segment.out_start : segment.out_stop].reshape(segment.out_stop - segment.out_start,
                                                           math.prod(w.shape[1:]))


class CupyConv:
    """The convolution kernels.

    Parameters
    ----------
    launch
        Launches the lowering kernels.
    scratch_bytes
        Most memory for the lowered matrices; a block has at least one image, whatever its size.
    """

    def __init__(self, launch: Launcher, scratch_bytes: int) -> None:
        self.launch = launch
        self.scratch_bytes = scratch_bytes

    def _blocks(self, out: Array, rows: int) -> Iterator[slice]:
        """Blocks of images whose matrices of `rows` rows in all stay within the scratch memory."""
        places = math.prod(out.shape[2:])
        size = max(1, min(self.scratch_bytes // (rows * places * out.itemsize),
                          _MAX_PLACES // places))
        for start in range(0, len(out), size):
            yield slice(start, min(start + size, len(out)))

    @staticmethod
    def _geometry(x: Array, out: Array, kernel: tuple[int, ...], spec: ConvSpec) -> tuple[int, ...]:
        """The parameters of the GEOMETRY macro."""
        before = three([pad[0] for pad in spec.pads], 0)
        return (*x.shape, *out.shape[2:], *kernel, *three(spec.stride, 1), *three(spec.dilation, 1),
                *before)

    def _lower(self, x: Array, out: Array, kernel: tuple[int, ...], spec: ConvSpec) -> Array:
        """The matrix of a group's channels x for the outputs of `out`'s extents."""
        places = x.shape[0] * math.prod(out.shape[2:])
        cols = cp.empty((x.shape[1] * math.prod(kernel), places), x.dtype)
        self.launch("im2col", x.dtype, places,
                    (*view(x), cols, *self._geometry(x, out, kernel, spec)), rows=x.shape[1])
        return cols

    @staticmethod
    def _channels_first(y: Array) -> Array:
        """A contiguous matrix [channels, images * od * oh * ow] of the outputs' gradient."""
        return cp.ascontiguousarray(y.swapaxes(0, 1)).reshape(y.shape[1],
                                                              y.shape[0] * math.prod(y.shape[2:]))

    def forward(self, x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                tick: Tick | None = None) -> None:
        """As `Backend.conv_forward`."""
        if out.size == 0:
            return
        if w.shape[1] == 0 or not covers([(s.out_start, s.out_stop) for s in spec.segments],
                                         out.shape[1]):
            out[...] = 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2))
        x, out = volume(x), volume(out)
        kernel = three(w.shape[2:], 1)
        for s in spec.segments:
            weights = _matrix(w, s)
            group_out = out[:, s.out_start : s.out_stop]
            if weights.size == 0:
                continue
            for block in self._blocks(out, sum(weights.shape)):
                to = group_out[block]
                y = cp.matmul(weights, self._lower(x[block, s.in_start : s.in_stop], to, kernel,
                                                   spec))
                y = y.reshape(to.shape[1], to.shape[0], *to.shape[2:]).swapaxes(0, 1)
                if bias is None:
                    to[...] = y
                else:
                    cp.add(y, bias[s.out_start : s.out_stop, None, None, None], out=to)
                if tick is not None:
                    tick()

    def backward_data(self, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                      tick: Tick | None = None) -> None:
        """As `Backend.conv_backward_data`."""
        if dx.size == 0:
            return
        # Usually every input channel belongs to one group and is written once; else the groups'
        # parts add up.
        add = dy.size == 0 or not covers([(s.in_start, s.in_stop) for s in spec.segments
                                          if s.out_start < s.out_stop], dx.shape[1])
        if add:
            dx.fill(0)
        if dy.size == 0:
            return
        dy, dx = volume(dy), volume(dx)
        kernel = three(w.shape[2:], 1)
        for s in spec.segments:
            weights = _matrix(w, s)
            if weights.size == 0:
                continue
            for block in self._blocks(dy, sum(weights.shape)):
                part, to = dy[block, s.out_start : s.out_stop], dx[block, s.in_start : s.in_stop]
                cols = cp.matmul(weights.T, self._channels_first(part))
                items = to.shape[0] * math.prod(to.shape[2:])
                args = (cols, *view(to), int(add), *self._geometry(to, part, kernel, spec))
                self.launch("col2im", dx.dtype, items, args, rows=to.shape[1])
                if tick is not None:
                    tick()

    def backward_weight(
        self, x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, tick: Tick | None = None
    ) -> None:
        """As `Backend.conv_backward_weight`."""
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
                cols = self._lower(x[block, s.in_start : s.in_stop], part, kernel, spec)
                rows = self._channels_first(part)
                if block.start == 0:
                    cp.matmul(rows, cols.T, out=grads)
                else:
                    cp.add(grads, cp.matmul(rows, cols.T), out=grads)
                if tick is not None:
                    tick()
