"""Convolutions as matrix products over cache-sized blocks of images.

An image is a volume with one plane. `numpy_columns` gathers the columns of a block with the
channels last, and the product ``columns [pixels, K] @ weights [K, O]`` is transposed into the
output. With all operands in row order, BLAS is up to a third faster than with
``weights [O, K] @ columns^T``, and one product can span several small images. Columns cover kernel
offsets within a plane. Each offset along the depth has its own product, from a part of the same
columns; the products are summed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hpcpar.kernels import numpy_columns, numpy_depthwise
from hpcpar.kernels.geometry import SHAPES, ConvSpec, Ints
from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_blocks import Scratch, blas_input, has_flat_images
from hpcpar.kernels.numpy_columns import TILE
from hpcpar.kernels.numpy_conv_windows import Blocks, Correlation, Index, blocks

#: Bytes of columns per block: large enough for BLAS to amortize packing the weights, small enough
#: for the L3 cache.
COLUMN_BYTES = 6 << 20
#: The same for the weight gradient, in which each block also adds to the whole gradient.
WEIGHT_COLUMN_BYTES = 12 << 20
#: With fewer pixels per image, even 1x1 kernels gather several images into one product.
NARROW = 96


class ConvGroup(NamedTuple):
    """One group of a convolution, for arrays of given shapes.

    Attributes
    ----------
    inputs, outputs : slice
        Channels of the group in x and y.
    weights, rotated : Index
        Index of the group's weights [O, C, kd, kh, kw] in w, and the same with the kernel rotated
        by 180 degrees.
    blocks : Blocks
        Blocks of images and their inputs.
    pixelwise : bool
        Whether each output pixel reads only the input pixel at the same position.
    """

    window: Correlation
    inputs: slice
    outputs: slice
    weights: Index
    rotated: Index
    blocks: Blocks
    pixelwise: bool


@lru_cache(maxsize=SHAPES)
def _groups(x: Ints, w: Ints, y: Ints, spec: ConvSpec, limit: int, item: int,
            adjoint: bool = False) -> tuple[ConvGroup, ...]:
    """The groups of a convolution from the shapes of x, w and y, with images as volumes.

    Blocks have about `limit` bytes of columns. `adjoint` selects the correlation that computes dx
    from dy.
    """
    whole, reverse = slice(None), slice(None, None, -1)
    depth: Index = (None,) if len(w) == 4 else ()
    ones, zeros = (1,) * len(depth), (0,) * len(depth)
    before = tuple(pad[0] for pad in spec.pads)
    window = Correlation((*ones, *w[2:]), (*ones, *spec.stride), (*ones, *spec.dilation),
                         (*zeros, *before))
    pixelwise = window.is_pointwise and not any(before) and x[2:] == y[2:]
    if adjoint:
        window = window.adjoint()
    groups = []
    for segment in spec.segments:
        i, o = slice(segment.in_start, segment.in_stop), slice(segment.out_start, segment.out_stop)
        if adjoint:
            parts = blocks(window, y, o, x, i, limit, item)
        else:
            parts = blocks(window, x, i, y, o, limit, item)
        rotated = (o, whole, *depth, *(reverse,) * (len(w) - 2))
        groups.append(ConvGroup(window, i, o, (o, whole, *depth), rotated, parts, pixelwise))
    return tuple(groups)


def conv_forward(scratch: Scratch, x: Array, w: Array, bias: Array | None, spec: ConvSpec,
                 out: Array, tick: Tick | None = None) -> None:
    if numpy_depthwise.is_depthwise(x, w, out, spec):
        numpy_depthwise.conv_forward(scratch, x, w, bias, spec, out, tick)
        return
    for group in _groups(x.shape, w.shape, out.shape, spec, COLUMN_BYTES, out.itemsize):
        taps = w[group.weights].transpose(2, 3, 4, 1, 0)
        _correlate(x, taps, None if bias is None else bias[group.outputs], group, group.inputs, out,
                   group.outputs, scratch, tick)


def conv_backward_data(scratch: Scratch, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                       tick: Tick | None = None) -> None:
    if numpy_depthwise.is_depthwise(dx, w, dy, spec):
        numpy_depthwise.conv_backward_data(scratch, dy, w, spec, dx, tick)
        return
    # The adjoint of a correlation with stride 1 is a correlation of dy with the rotated kernel.
    adjoint = spec.stride == (1,) * len(spec.stride)
    channels_read = sum(segment.in_stop - segment.in_start for segment in spec.segments)
    if dy.size == 0 or channels_read < dx.shape[1] or not adjoint:
        # The loop below skips channels that no segment reads, and adds to dx if there is a stride.
        dx[...] = 0
    if dy.size == 0 or dx.size == 0:
        return
    for group in _groups(dx.shape, w.shape, dy.shape, spec, COLUMN_BYTES, dx.itemsize, adjoint):
        if adjoint:
            taps = w[group.rotated].transpose(2, 3, 4, 0, 1)
            _correlate(dy, taps, None, group, group.outputs, dx, group.inputs, scratch, tick)
        else:
            _scatter(dy, w[group.weights].transpose(2, 0, 3, 4, 1), group, dx, scratch, tick)


def conv_backward_weight(scratch: Scratch, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                         dbias: Array | None, tick: Tick | None = None) -> None:
    if numpy_depthwise.is_depthwise(x, dw, dy, spec):
        numpy_depthwise.conv_backward_weight(scratch, x, dy, spec, dw, dbias, tick)
        return
    for group in _groups(x.shape, dw.shape, dy.shape, spec, WEIGHT_COLUMN_BYTES, dw.itemsize):
        _weight_gradient(x, dy, group, dw[group.weights],
                         None if dbias is None else dbias[group.outputs], scratch, tick)


def _correlate(x: Array, taps: Array, bias: Array | None, group: ConvGroup, inputs: slice,
               out: Array, outputs: slice, scratch: Scratch, tick: Tick | None) -> None:
    """Correlate channels `inputs` of x with taps [kd, kh, kw, C, O], and add the bias [O]."""
    kd, kh, kw, channels, filters = taps.shape
    if filters == 0 or out.size == 0:
        return
    if channels == 0 or x.size == 0:
        out[:, outputs] = 0 if bias is None else bias.reshape(-1, *(1,) * (out.ndim - 2))
        return
    wide = out[0, 0].size >= NARROW
    if group.pixelwise and wide and has_flat_images(x) and has_flat_images(out):
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
    """A 1x1 convolution with weights [O, C]: each image is a matrix [C, pixels] in place."""
    weights = blas_input(weights)
    for x_image, out_image in zip(x, out, strict=True):
        product = out_image.reshape(weights.shape[0], -1)
        np.matmul(weights, x_image.reshape(weights.shape[1], -1), out=product)
        if bias is not None:
            product += bias[:, None]
        if tick is not None:
            tick()


def _scatter(dy: Array, taps: Array, group: ConvGroup, dx: Array, scratch: Scratch,
             tick: Tick | None) -> None:
    """Add the adjoint of the correlation with taps [kd, O, kh, kw, C] to dx, by col2im."""
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


def _weight_gradient(x: Array, dy: Array, group: ConvGroup, dw: Array, dbias: Array | None,
                     scratch: Scratch, tick: Tick | None) -> None:
    """dw [O, C, kd, kh, kw] and dbias [O] of one group."""
    filters, channels, kd, kh, kw = dw.shape
    shape = (kd, filters, kh * kw * channels)
    if dbias is not None:
        dbias[...] = 0
    gradient = scratch.get("gradient", shape, dw.dtype)
    first = True
    for n, reads in group.blocks if dw.size or dbias is not None else ():
        flat = numpy_columns.pixels_last(dy[n], reads, scratch)
        if dbias is not None:
            dbias += flat.sum(axis=1)
        if x.size:
            columns = numpy_columns.gather(x[n], group.window, reads, scratch)
            for total, columns_u in zip(gradient, columns, strict=True):
                if first:
                    np.matmul(flat, columns_u, out=total)
                else:
                    product = scratch.get("product", shape[1:], dw.dtype)
                    total += np.matmul(flat, columns_u, out=product)
            first = False
        if tick is not None:
            tick()
    if first:
        dw[...] = 0
    else:
        dw[...] = gradient.reshape(kd, filters, kh, kw, channels).transpose(1, 4, 0, 2, 3)
