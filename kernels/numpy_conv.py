"""Convolutions as matrix products over blocks of images that fit the cache.

An image is a volume of one plane. The blocks are gathered pixel by pixel with the channels last (see numpy_columns): the product
``columns [pixels, K] @ weights [K, O]`` is transposed into the output. With every operand in row order BLAS is up to a third
faster than with ``weights [O, K] @ columns^T``, which would need no transposition, and one product may span several small images.
Columns hold the reads of a plane; the places of the kernel along the depth are products of their own, added up: what is gathered
once then serves every place.
"""

from __future__ import annotations

import numpy as np

from hpcpar.kernels import numpy_columns
from hpcpar.kernels.interface import Array, ConvSpec, Segment, Tick
from hpcpar.kernels.numpy_blocks import Scratch, blas_input, has_flat_images, volume_blocks
from hpcpar.kernels.numpy_columns import TILE, Window

#: Bytes of gathered columns per block. Large enough for BLAS to amortise packing the weights, small enough for the L3 cache.
COLUMN_BYTES = 6 << 20
#: The same for the weights' gradient, where every block also costs one addition to the whole gradient.
WEIGHT_COLUMN_BYTES = 12 << 20
#: Pixels per image below which a product per image is too narrow, so that gathering several images pays even for 1x1 kernels.
NARROW = 96


def _volume(a: Array) -> Array:
    """A view of images as volumes of one plane; volumes as they are."""
    return a[:, :, None] if a.ndim == 4 else a


def _window(w: Array, spec: ConvSpec) -> Window:
    """The window of a convolution's forward pass, with three axes."""
    flat = w.ndim == 4
    before = tuple(pad[0] for pad in spec.pads)
    if flat:
        return Window((1, *w.shape[2:]), (1, *spec.stride), (1, *spec.dilation), (0, *before))
    return Window(w.shape[2:], spec.stride, spec.dilation, before)


def _parts(segment: Segment) -> tuple[slice, slice]:
    """A group's input and output channels."""
    return slice(segment.in_start, segment.in_stop), slice(segment.out_start, segment.out_stop)


def conv_forward(x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array, scratch: Scratch, tick: Tick | None) -> None:
    """See `Backend.conv_forward`."""
    window = _window(w, spec)
    x, w, out = _volume(x), _volume(w), _volume(out)
    for i, o in map(_parts, spec.segments):
        _correlate(x[:, i], w[o].transpose(2, 3, 4, 1, 0), None if bias is None else bias[o], window, out[:, o], scratch, tick)


def conv_backward_data(dy: Array, w: Array, spec: ConvSpec, dx: Array, scratch: Scratch, tick: Tick | None) -> None:
    """See `Backend.conv_backward_data`."""
    window = _window(w, spec)
    dy, w, dx = _volume(dy), _volume(w), _volume(dx)
    if dy.size == 0 or sum(seg.in_stop - seg.in_start for seg in spec.segments) < dx.shape[1]:
        # Channels that no segment reads are written by nobody below.
        dx[...] = 0
    for i, o in map(_parts, spec.segments):
        dx_part, dy_part, w_part = dx[:, i], dy[:, o], w[o]
        if dy_part.size == 0:
            dx_part[...] = 0
        elif window.stride == (1, 1, 1):
            # The adjoint is itself a correlation: of dy with the kernel turned by 180 degrees, inputs and outputs swapped.
            taps = w_part[:, :, ::-1, ::-1, ::-1].transpose(2, 3, 4, 0, 1)
            before = tuple(d * (k - 1) - b for d, k, b in zip(window.dilation, window.kernel, window.before, strict=True))
            _correlate(dy_part, taps, None, Window(window.kernel, (1, 1, 1), window.dilation, before), dx_part, scratch, tick)
        else:
            _scatter(dy_part, w_part.transpose(2, 0, 3, 4, 1), window, dx_part, scratch, tick)


def conv_backward_weight(
    x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """See `Backend.conv_backward_weight`."""
    window = _window(dw, spec)
    x, dy, dw = _volume(x), _volume(dy), _volume(dw)
    for i, o in map(_parts, spec.segments):
        _weight_gradient(x[:, i], dy[:, o], window, dw[o], None if dbias is None else dbias[o], scratch, tick)


def _correlate(
    x: Array, taps: Array, bias: Array | None, window: Window, out: Array, scratch: Scratch, tick: Tick | None
) -> None:
    """out[n, o] = bias[o] + the correlation of x [N, C, D, H, W] with taps [kd, kh, kw, C, O] (any strides)."""
    filters, channels = out.shape[1], taps.shape[3]
    if out.size == 0:
        return
    if channels == 0 or x.size == 0:
        out[...] = 0 if bias is None else bias[:, None, None, None]
        return
    whole = window.is_pointwise and not any(window.before) and x.shape[2:] == out.shape[2:]
    if whole and out[0, 0].size >= NARROW and has_flat_images(x) and has_flat_images(out):
        _multiply_channels(x, taps[0, 0, 0].T, bias, out, tick)
        return
    weights = scratch.get("weights", taps.shape, out.dtype)
    for start in range(0, filters, TILE):
        weights[..., start : start + TILE] = taps[..., start : start + TILE]
    weights = weights.reshape(taps.shape[0], -1, filters)
    for n, d, r in _blocks(out, window, channels, COLUMN_BYTES):
        columns = numpy_columns.gather(x, window, (n, d, r), out.shape[4], scratch)
        product = scratch.get("product", (columns[0].shape[0], filters), out.dtype)
        for u, (reads, factor) in enumerate(zip(columns, weights, strict=True)):
            if u:
                product += np.matmul(reads, factor, out=scratch.get("summand", product.shape, out.dtype))
            else:
                np.matmul(reads, factor, out=product)
        if bias is not None:
            product += bias
        numpy_columns.store(product, out[n, :, d, r])
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


def _scatter(dy: Array, taps: Array, window: Window, dx: Array, scratch: Scratch, tick: Tick | None) -> None:
    """dx = the adjoint of the correlation with taps [kd, O, kh, kw, C], for any stride: columns first, then sums of columns."""
    width, filters, channels = dy.shape[4], dy.shape[1], taps.shape[4]
    dx[...] = 0
    if dx.size == 0:
        return
    weights = scratch.get("weights", taps.shape, dx.dtype)
    weights[...] = taps
    for n, d, r in _blocks(dy, window, channels, COLUMN_BYTES):
        flat = numpy_columns.pixels_last(dy[n, :, d, r], scratch)
        padded = numpy_columns.empty_padded(window, (n, d, r), width, channels, dx.dtype, scratch)
        padded[...] = 0
        columns = scratch.get("columns", (flat.shape[1], *taps.shape[2:]), dx.dtype)
        for u in range(window.kernel[0]):
            np.matmul(flat.T, weights[u].reshape(filters, -1), out=columns.reshape(len(columns), -1))
            numpy_columns.add_columns(columns, window, u, (n, d, r), width, padded)
        numpy_columns.add_padded(padded, window, (n, d, r), dx)
        if tick is not None:
            tick()


def _weight_gradient(
    x: Array, dy: Array, window: Window, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """dw [O, C, kd, kh, kw] and dbias [O] of one group."""
    filters, channels, width = dw.shape[0], dw.shape[1], dy.shape[4]
    kd, kh, kw = window.kernel
    shape = (kd, filters, kh * kw * channels)
    if dbias is not None:
        dbias[...] = 0
    gradient = scratch.get("gradient", shape, dw.dtype)
    first = True
    if dw.size or dbias is not None:
        for n, d, r in _blocks(dy, window, channels, WEIGHT_COLUMN_BYTES):
            flat = numpy_columns.pixels_last(dy[n, :, d, r], scratch)
            if dbias is not None:
                dbias += flat.sum(axis=1)
            if x.size:
                for total, reads in zip(gradient, numpy_columns.gather(x, window, (n, d, r), width, scratch), strict=True):
                    if first:
                        np.matmul(flat, reads, out=total)
                    else:
                        total += np.matmul(flat, reads, out=scratch.get("product", shape[1:], dw.dtype))
                first = False
            if tick is not None:
                tick()
    dw[...] = 0 if first else gradient.reshape(kd, filters, kh, kw, channels).transpose(1, 4, 0, 2, 3)


def _blocks(out: Array, window: Window, channels: int, limit: int) -> numpy_columns.Blocks:
    """Blocks (images, planes, rows) of a convolution's outputs whose columns take about `limit` bytes."""
    images, _, planes, rows, width = out.shape
    return volume_blocks(images, planes, rows, window.row_items(width, channels), limit // out.itemsize)
