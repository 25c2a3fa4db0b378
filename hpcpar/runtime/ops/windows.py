"""Sliding windows on a block: which part of the needed box is read, and how it is padded."""

from __future__ import annotations

from hpcpar.network.receptive_field import Window
from hpcpar.plan.boxes import Box, Interval


def reach(window: Window, out: Interval, need: Interval, extent: int) -> tuple[slice, Interval]:
    """(slice of the needed interval that outputs `out` read, padding before and after it)."""
    lo, hi = window.needed(*out, extent)
    return slice(lo - need[0], hi - need[0]), window.pads(*out, extent)


def reaches(windows: tuple[Window, ...], out: Box, need: Box,
            extents: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[Interval, ...]]:
    """`reach` for every image axis (boxes are N C H W or N C D H W)."""
    pairs = [reach(w, o, n, e) for w, o, n, e in zip(windows, out[2:], need[2:], extents,
                                                     strict=True)]
    return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
