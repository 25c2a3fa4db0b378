"""Convolutions as matrix products over blocks of images that fit the cache.

An image is a volume of one plane. The blocks are gathered pixel by pixel with the channels last
(see numpy_columns): the product ``columns [pixels, K] @ weights [K, O]`` is transposed into the
output. With every operand in row order BLAS is up to a third faster than with ``weights [O, K] @
columns^T``, which would need no transposition, and one product may span several small images.
Columns hold the reads of a plane; the places of the kernel along the depth are products of their
own, added up: what is gathered once then serves every place.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hpcpar.kernels import numpy_columns
from hpcpar.kernels.interface import Array, ConvSpec, Ints, Tick
from hpcpar.kernels.numpy_blocks import Scratch, blas_input, has_flat_images
from hpcpar.kernels.numpy_columns import TILE
from hpcpar.kernels.numpy_windows import Blocks, Index, Window, blocks

#: Bytes of gathered columns per block. Large enough for BLAS to amortise packing the weights, small
#: enough for the L3 cache.
COLUMN_BYTES = 6 << 20
#: The same for the weights' gradient, where every block also costs one addition to the whole
#: gradient.
WEIGHT_COLUMN_BYTES = 12 << 20
#: Pixels per image below which a product per image is too narrow, so that gathering several images
#: pays even for 1x1 kernels.
NARROW = 96


#: Shapes whose geometry is remembered: more than the different convolutions of a large network.
SHAPES = 1024


class Group(NamedTuple):
    """A group of a convolution of certain shapes.

    Attributes
    ----------
    inputs, outputs : slice
        Its channels in x and y.
    weights, taps : Index
        Its weights [O, C, kd, kh, kw] in w, and the same with the kernel turned by 180 degrees.
    blocks : Blocks
        The blocks of images and what each reads.
    pixel : bool
        Every output reads the one pixel of its own place.
    """

    window: Window
    inputs: slice
    outputs: slice
    weights: Index
    turned: Index
    blocks: Blocks
    pixel: bool


@lru_cache(maxsize=SHAPES)
def _groups(x: Ints, w: Ints, y: Ints, spec: ConvSpec, limit: int, item: int,
            adjoint: bool = False) -> tuple[Group, ...]:
    """The groups of a convolution from the shapes of x, w and y; `adjoint`: of the correlation that
    makes dx from dy.

    Blocks have about `limit` bytes of columns. An image is a volume of one plane.
    """
    whole, back, flat = slice(None), slice(None, None, -1), (None,) if len(w) == 4 else ()
    before, one = tuple(pad[0] for pad in spec.pads), (1,) * len(flat)
    window = Window((*one, *w[2:]), (*one, *spec.stride), (*one, *spec.dilation),
                    (*(0,) * len(flat), *before))
    pixel = window.is_pointwise and not any(before) and x[2:] == y[2:]
    if adjoint:
        window = window.turned()
    found = []
    for segment in spec.segments:
        i, o = slice(segment.in_start, segment.in_stop), slice(segment.out_start, segment.out_stop)
        parts = blocks(window, y, o, x, i, limit, item) if adjoint else blocks(window, x, i, y, o, limit, item)
        found.append(Group(window, i, o, (o, whole, *flat),
                           (o, whole, *flat, *(back,) * (len(w) - 2)), parts, pixel))
    return tuple(found)


def conv_forward(x: Array, w: Array, bias: Array | None, spec: ConvSpec, out: Array,
                 scratch: Scratch, tick: Tick | None) -> None:
    """See `Backend.conv_forward`."""
    for group in _groups(x.shape, w.shape, out.shape, spec, COLUMN_BYTES, out.itemsize):
        taps = w[group.weights].transpose(2, 3, 4, 1, 0)
        _correlate(x, taps, None if bias is None else bias[group.outputs], group, group.inputs, out,
                   group.outputs, scratch, tick)


def conv_backward_data(dy: Array, w: Array, spec: ConvSpec, dx: Array, scratch: Scratch,
                       tick: Tick | None) -> None:
    """See `Backend.conv_backward_data`."""
    # The adjoint of a correlation without stride is itself one: of dy with the kernel turned,
    # inputs and outputs swapped.
    adjoint = spec.stride == (1,) * len(spec.stride)
    if dy.size == 0 or sum(seg.in_stop - seg.in_start
                           for seg in spec.segments) < dx.shape[1] or not adjoint:
        # Channels that no segment reads are written by nobody below.
        dx[...] = 0
    if dy.size == 0 or dx.size == 0:
        return
    for group in _groups(dx.shape, w.shape, dy.shape, spec, COLUMN_BYTES, dx.itemsize, adjoint):
        if adjoint:
            taps = w[group.turned].transpose(2, 3, 4, 0, 1)
            _correlate(dy, taps, None, group, group.outputs, dx, group.inputs, scratch, tick)
        else:
            _scatter(dy, w[group.weights].transpose(2, 0, 3, 4, 1), group, dx, scratch, tick)


def conv_backward_weight(
    x: Array, dy: Array, spec: ConvSpec, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """See `Backend.conv_backward_weight`."""
    for group in _groups(x.shape, dw.shape, dy.shape, spec, WEIGHT_COLUMN_BYTES, dw.itemsize):
        _weight_gradient(x, dy, group, dw[group.weights],
                         None if dbias is None else dbias[group.outputs], scratch, tick)


def _correlate(
    x: Array, taps: Array, bias: Array | None, group: Group, inputs: slice, out: Array, outputs: slice, scratch: Scratch,
    tick: Tick | None,
) -> None:
    """out[n, o] = bias[o] + the correlation of channels `inputs` of x with taps [kd, kh, kw, C, O]
    (any strides).
    """
    kd, kh, kw, channels, filters = taps.shape
    if filters == 0 or out.size == 0:
        return
    if channels == 0 or x.size == 0:
        out[:, outputs] = 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2))
        return
    if group.pixel and out[0, 0].size >= NARROW and has_flat_images(x) and has_flat_images(out):
        _multiply_channels(x[:, inputs], taps[0, 0, 0].T, bias, out[:, outputs], tick)
        return
    weights = scratch.get("weights", taps.shape, out.dtype)
    for start in range(0, filters, TILE):
        weights[..., start:start + TILE] = taps[..., start:start + TILE]
    weights = weights.reshape(kd, kh * kw * channels, filters)
    for n, reads in group.blocks:
        columns = numpy_columns.gather(x[n], group.window, reads, scratch)
        product = scratch.get("product", (len(columns[0]), filters), out.dtype)
        np.matmul(columns[0], weights[0], out=product)
        for u in range(1, kd):
            product += np.matmul(columns[u], weights[u],
                                 out=scratch.get("summand", product.shape, out.dtype))
        if bias is not None:
            product += bias
        numpy_columns.store(product, reads, out[n])
        if tick is not None:
            tick()


def _multiply_channels(x: Array, weights: Array, bias: Array | None, out: Array,
                       tick: Tick | None) -> None:
    """A 1x1 convolution with weights [O, C], image by image in place: the images are matrices [C,
    pixels] already.
    """
    weights = blas_input(weights)
    for x_image, out_image in zip(x, out, strict=True):
        product = out_image.reshape(weights.shape[0], -1)
        np.matmul(weights, x_image.reshape(weights.shape[1], -1), out=product)
        if bias is not None:
            product += bias[:, None]
        if tick is not None:
            tick()


def _scatter(dy: Array, taps: Array, group: Group, dx: Array, scratch: Scratch,
             tick: Tick | None) -> None:
    """Add to dx the adjoint of the correlation with taps [kd, O, kh, kw, C], for any stride:
    columns first, then sums of columns.
    """
    kd, filters = taps.shape[:2]
    weights = scratch.get("weights", taps.shape, dx.dtype)
    weights[...] = taps
    weights = weights.reshape(kd, filters, math.prod(taps.shape[2:]))
    for n, reads in group.blocks:
        flat = numpy_columns.pixels_last(dy[n], reads, scratch)
        numpy_columns.clear(reads, dx.dtype, scratch)
        columns = scratch.get("columns", (flat.shape[1], *taps.shape[2:]), dx.dtype)
        for u in range(kd):
            np.matmul(flat.T, weights[u], out=columns.reshape(len(columns), -1))
            numpy_columns.add_columns(columns, reads, u, scratch)
        numpy_columns.add_padded(reads, dx[n], scratch)
        if tick is not None:
            tick()


def _weight_gradient(
    x: Array, dy: Array, group: Group, dw: Array, dbias: Array | None, scratch: Scratch, tick: Tick | None
) -> None:
    """dw [O, C, kd, kh, kw] and dbias [O] of one group."""
    filters, channels, kd, kh, kw = dw.shape
    shape = (kd, filters, kh * kw * channels)
    if dbias is not None:
        dbias[...] = 0
    gradient = scratch.get("gradient", shape, dw.dtype)
    first = True
    if dw.size or dbias is not None:
        for n, reads in group.blocks:
            flat = numpy_columns.pixels_last(dy[n], reads, scratch)
            if dbias is not None:
                dbias += flat.sum(axis=1)
            if x.size:
                for total, columns in zip(gradient,
                                          numpy_columns.gather(x[n], group.window, reads, scratch),
                                          strict=True):
                    if first:
                        np.matmul(flat, columns, out=total)
                    else:
                        total += np.matmul(flat, columns,
                                           out=scratch.get("product", shape[1:], dw.dtype))
                first = False
            if tick is not None:
                tick()
    dw[...] = 0 if first else gradient.reshape(kd, filters, kh, kw, channels).transpose(1, 4, 0, 2, 3)
