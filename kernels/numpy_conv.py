"""Convolutions as matrix products over blocks of images that fit the cache.

The blocks are gathered pixel by pixel in NHWC order: the part of a window that lies in one row of the image is then one
contiguous run of kernel width * channels items, which NumPy copies at memcpy's speed; in NCHW order a run is at most one
(short) image row. The product is ``columns [pixels, K] @ weights [K, O]`` and its result is transposed into the output:
with every operand in row order BLAS is up to a third faster than with ``weights [O, K] @ columns^T``, which would need no
transposition, and one product may span several small images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hpcpar.kernels.interface import Array, ConvSpec, Pair, Tick
from hpcpar.kernels.numpy_blocks import Scratch, blas_input, has_flat_images, image_blocks

#: Bytes of gathered columns per block. Large enough for BLAS to amortise packing the weights, small enough for the L3 cache.
COLUMN_BYTES = 6 << 20
#: The same for the weights' gradient, where every block also costs one addition to the whole gradient.
WEIGHT_COLUMN_BYTES = 12 << 20
#: Items of the axis that a transposing copy is cut along: a cache line of each then stays in L1 until it is used up.
TILE = 64
#: Pixels per image below which a product per image is too narrow, so that gathering several images pays even for 1x1 kernels.
NARROW = 96


@dataclass(frozen=True)
class Window:
    """Where the outputs of a correlation read: output i reads input i * stride - before + dilation * u."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    before: Pair

    @property
    def is_pointwise(self) -> bool:
        """A 1x1 kernel that moves pixel by pixel: the columns are the image itself."""
        return self.kernel == (1, 1) and self.stride == (1, 1)

    def reach(self, axis: int, outputs: int) -> int:
        """Inputs (padding included) between the first and the last that `outputs` neighbouring outputs read."""
        return (outputs - 1) * self.stride[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def row_items(self, width: int, channels: int) -> int:
        """Scratch items per row of outputs: the columns or, where the stride skips inputs, the padded image."""
        area = max(self.kernel[0] * self.kernel[1], self.stride[0] * self.stride[1])
        return max(1, width * channels * area)


def window_of(w: Array, spec: ConvSpec) -> Window:
    """The window of a convolution's forward pass."""
    return Window((w.shape[2], w.shape[3]), spec.stride, spec.dilation, (spec.pads[0][0], spec.pads[1][0]))


def conv_forward(x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array, scratch: Scratch, tick: Tick | None) -> None:
    """See `Backend.conv_forward`."""
    window = window_of(w, spec)
    for seg in spec.segments:
        o = slice(seg.out_start, seg.out_stop)
        taps = w[o].transpose(2, 3, 1, 0)
        _correlate(x[:, seg.in_start : seg.in_stop], taps, None if bias is None else bias[o], window, out[:, o], scratch, tick)


def conv_backward_data(dy: Array, w: Array, spec: ConvSpec, dx: Array, scratch: Scratch, tick: Tick | None) -> None:
    """See `Backend.conv_backward_data`."""
    window = window_of(w, spec)
    if dy.size == 0 or sum(seg.in_stop - seg.in_start for seg in spec.segments) < dx.shape[1]:
        # Channels that no segment reads are written by nobody below.
        dx[...] = 0
    for seg in spec.segments:
        dx_part, dy_part, w_part = dx[:, seg.in_start : seg.in_stop], dy[:, seg.out_start : seg.out_stop], w[seg.out_start : seg.out_stop]
        if dy_part.size == 0:
            dx_part[...] = 0
        elif spec.stride == (1, 1):
            # The adjoint is itself a correlation: of dy with the kernel turned by 180 degrees, inputs and outputs swapped.
            taps = w_part[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
            before = tuple(d * (k - 1) - b for d, k, b in zip(window.dilation, window.kernel, window.before, strict=True))
            turned = Window(window.kernel, (1, 1), window.dilation, (before[0], before[1]))
            _correlate(dy_part, taps, None, turned, dx_part, scratch, tick)
        else:
            _scatter(dy_part, w_part.transpose(0, 2, 3, 1), window, dx_part, scratch, tick)


def conv_backward_weight(
    x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """See `Backend.conv_backward_weight`."""
    window = window_of(dw, spec)
    for seg in spec.segments:
        o = slice(seg.out_start, seg.out_stop)
        x_part = x[:, seg.in_start : seg.in_stop]
        _weight_gradient(x_part, dy[:, o], window, dw[o], None if dbias is None else dbias[o], scratch, tick)


def _correlate(
    x: Array, taps: Array, bias: Array | None, window: Window, out: Array, scratch: Scratch, tick: Tick | None
) -> None:
    """out[n, o] = bias[o] + the correlation of x [N, C, H, W] with taps [kh, kw, C, O] (any strides)."""
    images, filters, rows, width = out.shape
    channels = taps.shape[2]
    if out.size == 0:
        return
    if channels == 0 or x.size == 0:
        out[...] = 0 if bias is None else bias[:, None, None]
        return
    whole = window.is_pointwise and window.before == (0, 0) and x.shape[2:] == out.shape[2:]
    if whole and rows * width >= NARROW and has_flat_images(x) and has_flat_images(out):
        _multiply_channels(x, taps[0, 0].T, bias, out, tick)
        return
    weights = scratch.get("weights", taps.shape, out.dtype)
    for start in range(0, filters, TILE):
        weights[..., start : start + TILE] = taps[..., start : start + TILE]
    weights = weights.reshape(-1, filters)
    for n, r in image_blocks(images, rows, window.row_items(width, channels), COLUMN_BYTES // out.itemsize):
        columns = _gather(x, window, n, r, width, scratch)
        product = scratch.get("product", (columns.shape[0], filters), out.dtype)
        np.matmul(columns, weights, out=product)
        if bias is not None:
            product += bias
        _store(product, out[n, :, r])
        if tick is not None:
            tick()


def _multiply_channels(x: Array, weights: Array, bias: Array | None, out: Array, tick: Tick | None) -> None:
    """A 1x1 convolution with weights [O, C], image by image in place: the images are matrices [C, pixels] already."""
    weights = blas_input(weights)
    for x_image, out_image in zip(x, out, strict=True):
        product = out_image.reshape(weights.shape[0], -1)
        np.matmul(weights, x_image.reshape(weights.shape[1], -1), out=product)
        if bias is not None:
            product += bias[:, None]
        if tick is not None:
            tick()


def _store(product: Array, out: Array) -> None:
    """Copy pixels [N * H * W, O] into an NCHW block, in tiles: whole planes would miss the L1 cache at every item."""
    images, filters, rows, width = out.shape
    pixels = product.reshape(images, rows, width, filters).transpose(0, 3, 1, 2)
    step = max(1, TILE // width)
    for start in range(0, rows, step):
        out[:, :, start : start + step] = pixels[:, :, start : start + step]


def _scatter(dy: Array, taps: Array, window: Window, dx: Array, scratch: Scratch, tick: Tick | None) -> None:
    """dx = the adjoint of the correlation with taps [O, kh, kw, C], for any stride: columns first, then sums of columns."""
    images, filters, rows, width = dy.shape
    channels = taps.shape[3]
    dx[...] = 0
    if dx.size == 0:
        return
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    weights = scratch.get("weights", taps.shape, dx.dtype)
    weights[...] = taps
    # Neighbouring taps go to neighbouring inputs in one run, up to the stride: beyond it, runs of neighbouring outputs overlap.
    group = sw if dw == 1 else 1
    for n, r in image_blocks(images, rows, window.row_items(width, channels), COLUMN_BYTES // dx.itemsize):
        flat = _pixels_last(dy[n, :, r], scratch)
        count, height = n.stop - n.start, r.stop - r.start
        columns = scratch.get("columns", (count, height, width, kh, kw * channels), dx.dtype)
        np.matmul(flat.T, weights.reshape(filters, -1), out=columns.reshape(count * height * width, -1))
        padded = scratch.get("padded", (count, window.reach(0, height), window.reach(1, width), channels), dx.dtype)
        padded[...] = 0
        image, line, pixel, item = padded.strides
        for u in range(kh):
            for v in range(0, kw, group):
                run = min(group, kw - v) * channels
                sums = as_strided(padded[:, u * dh :, v * dw :], (count, height, width, run), (image, sh * line, sw * pixel, item))
                sums += columns[:, :, :, u, v * channels : v * channels + run]
        (inside_h, x_h), (inside_w, x_w) = _overlaps(window, r.start, padded.shape[1:3], dx.shape[2:])
        dx[n, :, x_h, x_w] += padded[:, inside_h, inside_w].transpose(0, 3, 1, 2)
        if tick is not None:
            tick()


def _weight_gradient(
    x: Array, dy: Array, window: Window, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """dw [O, C, kh, kw] and dbias [O] of one group."""
    images, filters, rows, width = dy.shape
    channels = dw.shape[1]
    (kh, kw) = window.kernel
    shape = (filters, kh * kw * channels)
    if dbias is not None:
        dbias[...] = 0
    gradient = scratch.get("gradient", shape, dw.dtype)
    first = True
    if dw.size or dbias is not None:
        for n, r in image_blocks(images, rows, window.row_items(width, channels), WEIGHT_COLUMN_BYTES // dw.itemsize):
            flat = _pixels_last(dy[n, :, r], scratch)
            if dbias is not None:
                dbias += flat.sum(axis=1)
            if x.size:
                columns = _gather(x, window, n, r, width, scratch)
                if first:
                    np.matmul(flat, columns, out=gradient)
                else:
                    gradient += np.matmul(flat, columns, out=scratch.get("product", shape, dw.dtype))
                first = False
            if tick is not None:
                tick()
    dw[...] = 0 if first else gradient.reshape(filters, kh, kw, channels).transpose(0, 3, 1, 2)


def _pixels_last(block: Array, scratch: Scratch) -> Array:
    """A block [N, O, H, W] as a matrix [O, N * H * W] with contiguous rows; a view if it can be."""
    count, filters, height, width = block.shape
    if count == 1 and has_flat_images(block):
        return block.reshape(filters, height * width)
    flat = scratch.get("pixels", (filters, count, height, width), block.dtype)
    flat[...] = block.swapaxes(0, 1)
    return flat.reshape(filters, count * height * width)


def _overlaps(window: Window, first: int, padded: Pair, extents: Pair) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Per image axis, the part of a padded block that lies inside x and where that is in x (both empty if nowhere)."""
    result = []
    for axis, start in enumerate((first * window.stride[0] - window.before[0], -window.before[1])):
        low = min(max(0, -start), padded[axis])
        high = max(low, min(padded[axis], extents[axis] - start))
        # An empty part may lie outside x: its slice must not become a negative index.
        result.append((slice(low, high), slice(low + start, high + start) if high > low else slice(0, 0)))
    return result[0], result[1]


def _gather(x: Array, window: Window, n: slice, r: slice, width: int, scratch: Scratch) -> Array:
    """The inputs that output rows `r` of images `n` read: columns [pixels, kh * kw * C]."""
    padded = _padded(x, window, n, r, width, scratch)
    count, height, channels = padded.shape[0], r.stop - r.start, x.shape[1]
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    pixels = count * height * width
    if window.is_pointwise:
        return padded.reshape(pixels, channels)
    image, line, pixel, item = padded.strides
    strides = (image, sh * line, sw * pixel, dh * line, dw * pixel, item)
    columns = scratch.get("columns", (count, height, width, kh, kw, channels), x.dtype)
    columns[...] = as_strided(padded, columns.shape, strides, writeable=False)
    return columns.reshape(pixels, kh * kw * channels)


def _padded(x: Array, window: Window, n: slice, r: slice, width: int, scratch: Scratch) -> Array:
    """The part of images `n` that output rows `r` read, padding included, in NHWC order."""
    shape = (n.stop - n.start, window.reach(0, r.stop - r.start), window.reach(1, width), x.shape[1])
    padded = scratch.get("padded", shape, x.dtype)
    (inside_h, x_h), (inside_w, x_w) = _overlaps(window, r.start, shape[1:3], x.shape[2:])
    if (inside_h.stop - inside_h.start, inside_w.stop - inside_w.start) != shape[1:3]:
        padded[...] = 0
    padded[:, inside_h, inside_w] = x[n, :, x_h, x_w].transpose(0, 2, 3, 1)
    return padded
