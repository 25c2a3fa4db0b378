"""Sliding windows on a block: which part of the needed box they read, and its padding."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.network.receptive_field import Transposed, Window
from hpcpar.plan.boxes import Box, Interval


def reaches(windows: Sequence[Window | Transposed], out: Box, need: Box,
            extents: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[Interval, ...]]:
    """The slices of the box `need` that outputs `out` read, and the padding of each image axis.

    Boxes are N C H W or N C D H W; `extents` is the shape of the image.
    """
    inner, pads = [slice(None), slice(None)], []
    for window, outputs, needed, extent in zip(windows, out[2:], need[2:], extents, strict=True):
        lo, hi = window.needed(*outputs, extent)
        inner.append(slice(lo - needed[0], hi - needed[0]))
        pads.append(window.pads(*outputs, extent))
    return tuple(inner), tuple(pads)
