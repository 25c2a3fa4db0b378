"""Depthwise convolutions, which filter each channel separately, without matrix products.

A cache-sized block of an image's channels is padded. Each kernel offset then contributes the
product of one weight per channel and a shifted view of the block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpcpar.kernels.geometry import ConvSpec, Ints
from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch
from hpcpar.kernels.numpy_conv_windows import Index

#: Index of a kernel offset's inputs in the padded inputs, and of its weights.
_Tap = tuple[Index, Index]


def is_depthwise(x: Array, w: Array, out: Array, spec: ConvSpec) -> bool:
    """True if there are several channels, and output channel i reads only input channel i."""
    channels = len(spec.segments)
    return (channels == x.shape[1] == out.shape[1] > 1 == w.shape[1]
            and all(s.in_start == s.out_start for s in spec.segments))


def _taps(kernel: Ints, out: Ints, spec: ConvSpec) -> list[_Tap]:
    geometry = list(zip(out, spec.stride, spec.dilation, strict=True))
    return [((..., *(slice(d * i, d * i + max(0, (n - 1) * s + 1), s)
                     for i, (n, s, d) in zip(u, geometry, strict=True))), (..., *u))
            for u in np.ndindex(kernel)]


def _blocks(x: Array, out: Array, w: Array, spec: ConvSpec, scratch: Scratch, tick: Tick | None
            ) -> Iterator[tuple[Array, Array, Array, Array, Array, slice]]:
    """Blocks of channels, image by image: inputs, outputs, weights [channels, 1, ..., *kernel],
    padded inputs, the image within the padded inputs, and the slice of channels.
    """
    padded = tuple(n + sum(pad) for n, pad in zip(x.shape[2:], spec.pads, strict=True))
    inner = (..., *(slice(pad[0], pad[0] + n)
                    for n, pad in zip(x.shape[2:], spec.pads, strict=True)))
    step = max(1, BLOCK_ITEMS // max(1, math.prod(padded)))
    for n in range(len(x)):
        for start in range(0, x.shape[1], step):
            c = slice(start, start + step)
            whole = scratch.get("padded", (len(x[n, c]), *padded), x.dtype)
            whole[...] = 0
            weights = w[c, 0].reshape(-1, *(1,) * len(padded), *w.shape[2:])
            yield x[n, c], out[n, c], weights, whole, whole[inner], c
            if tick is not None:
                tick()


def conv_forward(scratch: Scratch, x: Array, w: Array, bias: Array | None, spec: ConvSpec,
                 out: Array, tick: Tick | None) -> None:
    taps = _taps(w.shape[2:], out.shape[2:], spec)
    for image, y, weights, padded, inner, c in _blocks(x, out, w, spec, scratch, tick):
        inner[...] = image
        term = scratch.get("term", y.shape, y.dtype)
        y[...] = 0 if bias is None else bias[c].reshape(-1, *(1,) * (y.ndim - 1))
        for view, u in taps:
            y += np.multiply(padded[view], weights[u], out=term)


def conv_backward_data(scratch: Scratch, dy: Array, w: Array, spec: ConvSpec, dx: Array,
                       tick: Tick | None) -> None:
    taps = _taps(w.shape[2:], dy.shape[2:], spec)
    for image, y, weights, padded, inner, _ in _blocks(dx, dy, w, spec, scratch, tick):
        term = scratch.get("term", y.shape, y.dtype)
        for view, u in taps:
            padded[view] += np.multiply(y, weights[u], out=term)
        image[...] = inner


def conv_backward_weight(scratch: Scratch, x: Array, dy: Array, spec: ConvSpec, dw: Array,
                         dbias: Array | None, tick: Tick | None) -> None:
    taps = _taps(dw.shape[2:], dy.shape[2:], spec)
    image_axes = tuple(range(1, dy.ndim - 1))
    dw[...] = 0
    if dbias is not None:
        np.sum(dy, axis=(0, *range(2, dy.ndim)), out=dbias)
    for image, y, _, padded, inner, c in _blocks(x, dy, dw, spec, scratch, tick):
        inner[...] = image
        term = scratch.get("term", y.shape, y.dtype)
        for view, u in taps:
            np.multiply(padded[view], y, out=term)
            dw[c, 0][u] += term.sum(axis=image_axes)
