"""Elementwise kernels on cache-sized blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcpar.kernels.interface import Array, Tick
from hpcpar.kernels.numpy_blocks import BLOCK_ITEMS, Scratch, flat_blocks

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 1 << 64


def masked(keep: Array, x: Array, out: Array) -> None:
    """out = x where `keep`, else 0; by a bit mask, because 0 * infinity is NaN."""
    bits = np.dtype(f"i{out.itemsize}")
    np.bitwise_and(x.view(bits), np.negative(keep.view(np.int8)), out=out.view(bits))


def dropout_mask(scratch: Scratch, key: int, start: tuple[int, ...], shape: tuple[int, ...],
                 extent: tuple[int, ...], rate: float, out: Array) -> None:
    if out.size == 0:
        return
    # `out` may be the flattened block, with the same elements in row-major order.
    block = out if tuple(out.shape) == tuple(shape) else np.empty(shape, out.dtype)
    steps = [math.prod(extent[axis + 1 :]) for axis in range(len(extent))]
    flat_start = sum(s * step for s, step in zip(start, steps, strict=True))
    # The counter of an element is key + (1 + global index) * golden modulo 2**64, which is a sum
    # with one term per axis.
    origin = (key + (1 + flat_start) * _GOLDEN) % _WORD
    # `uniform` is a multiple of 2**-53, so integers suffice to compare it with the rate.
    threshold = np.uint64(math.ceil(rate * 2**53))
    keep = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    _fill_mask(block, [step * _GOLDEN % _WORD for step in steps], origin, threshold, keep, scratch)
    if block is not out:
        out[...] = block.reshape(out.shape)


def _fill_mask(out: Array, steps: list[int], origin: int, threshold: np.uint64, keep: float,
               scratch: Scratch) -> None:
    """Fill the mask of a block whose counters start at `origin` and grow by `steps` per axis.

    Larger blocks than the cache are split along the first axis.
    """
    inner = out.size // out.shape[0] if out.ndim else 1
    if inner > BLOCK_ITEMS:
        for i in range(out.shape[0]):
            start = (origin + i * steps[0]) % _WORD
            _fill_mask(out[i], steps[1:], start, threshold, keep, scratch)
        return
    rows = max(1, BLOCK_ITEMS // inner)
    for first in range(0, out.shape[0] if out.ndim else 1, rows):
        part = out[first : first + rows] if out.ndim else out
        z = scratch.get("counter", part.shape, np.uint64)
        z[...] = np.uint64((origin + first * (steps[0] if steps else 0)) % _WORD)
        for axis, step in enumerate(steps):
            term = np.arange(part.shape[axis], dtype=np.uint64) * np.uint64(step)
            z += term.reshape((-1,) + (1,) * (part.ndim - 1 - axis))
        t = scratch.get("shifted", part.shape, np.uint64)
        # The output function of splitmix64.
        z ^= np.right_shift(z, np.uint64(30), out=t)
        z *= np.uint64(0xBF58476D1CE4E5B9)
        z ^= np.right_shift(z, np.uint64(27), out=t)
        z *= np.uint64(0x94D049BB133111EB)
        z ^= np.right_shift(z, np.uint64(31), out=t)
        np.right_shift(z, np.uint64(11), out=z)
        np.multiply(z >= threshold, part.dtype.type(keep), out=part)


def nonfinite_search(x: Array, outputs: Sequence[Array], found: Array) -> Tick:
    def search() -> None:
        found[...] = 0
        if not _is_finite(x):
            found[...] = [not _is_finite(out) for out in outputs]

    return search


def _is_finite(x: Array) -> bool:
    return all(bool(np.isfinite(part).all()) for (part,) in flat_blocks(x))
