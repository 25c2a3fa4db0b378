"""Boxes of many ranks at once, as arrays; `Layout.box` is the scalar version."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.axis import Axis, IntArray, intervals
from hpcpar.plan.layout import Layout


def lives(layout: Layout, rank: IntArray) -> NDArray[np.bool_]:
    """Mask of the ranks on which the layer runs."""
    at = rank - layout.config.first
    return (at >= 0) & (at < layout.config.ranks)


def part(layout: Layout, axis: Axis, rank: IntArray) -> IntArray:
    """Index of each rank's part of an axis."""
    mesh_axis = layout.mesh_axis(axis)
    return np.asarray(mesh_axis.of(rank - layout.config.first) + np.zeros_like(rank))


def boxes(layout: Layout, rank: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Starts and stops of the ranks' boxes along each axis; 0 if the layer does not run there."""
    runs = lives(layout, rank)
    out = []
    for axis in layout.axes:
        start, stop = intervals(axis, layout.degree(axis),
                                np.where(runs, part(layout, axis, rank), 0))
        out.append((np.where(runs, start, 0), np.where(runs, stop, 0)))
    return out


def box_shapes(layout: Layout, rank: IntArray) -> tuple[IntArray, ...]:
    """Sizes of the ranks' boxes along each axis."""
    return tuple(stop - start for start, stop in boxes(layout, rank))


def box_items(layout: Layout, rank: IntArray) -> IntArray:
    """Number of items in the ranks' boxes."""
    out = np.ones_like(rank)
    for extent in box_shapes(layout, rank):
        out = out * extent
    return out
