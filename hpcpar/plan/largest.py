"""The largest boxes of many layouts of families, worked out in one go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hpcpar.network.relation import Full, Same
from hpcpar.plan.axis import Axis, column, each_part
from hpcpar.plan.boxes import largest_part
from hpcpar.plan.layout import Layout


def work_out_largest(layouts: Iterable[Layout]) -> None:
    """Find `Layout.largest` of those that do not know it yet, which have an entry for each case."""
    todo = list({id(layout): layout for layout in layouts if "largest" not in layout.__dict__}.values())
    if not todo:
        return
    width, counts = max(len(layout.axes) for layout in todo), np.array([layout.config.n.size for layout in todo])
    ends = np.cumsum(counts)
    # axes that a tensor has not: of one index
    units: Any = np.ones((2, width, len(todo)), np.int64)
    parts: Any = np.ones((width, ends[-1]), np.int64)
    others: dict[type, list[tuple[Axis, int, slice]]] = {}
    places = [slice(int(end - count), int(end)) for end, count in zip(ends, counts, strict=True)]
    for i, (layout, here) in enumerate(zip(todo, places, strict=True)):
        units[0, : len(layout.axes), i] = layout.shape
        for row, axis in enumerate(layout.axes):
            relation = type(axis.relation)
            if relation is Full:
                continue
            if relation is Same:
                units[1, row, i] = axis.granule
            else:
                others.setdefault(relation, []).append((axis, row, here))
            if axis.name in layout.digits:
                parts[row, here] = layout.digits[axis.name].size
    extents, granules = np.repeat(units, counts, axis=2)
    sizes: Any = largest_part(extents, parts, granules)
    for some in others.values():
        _widest(some, parts, sizes)
    items = np.multiply.reduce(sizes, axis=0)
    for layout, here in zip(todo, places, strict=True):
        largest = (axis.extent if isinstance(axis.relation, Full) else row[here] for axis, row in zip(layout.axes, sizes, strict=False))
        layout.__dict__.update(largest=tuple(largest), largest_items=items[here])


def _widest(some: list[tuple[Axis, int, slice]], parts: Any, sizes: Any) -> None:
    """The same for axes that are related alike, each in a row of arrays and some of its entries."""
    counts = [here.stop - here.start for _, _, here in some]
    degrees = np.concatenate([parts[row, here] for _, row, here in some])
    most = int(degrees.max()) + 1
    different, at = np.unique(np.repeat(np.arange(len(some)), counts) * most + degrees, return_inverse=True)
    whose, degree = np.divmod(different, most)
    start, stop, begins = each_part(column([axis for axis, _, _ in some]).at(whose), degree)
    found, begin = np.maximum.reduceat(stop - start, begins)[at], 0
    for (_, row, here), count in zip(some, counts, strict=True):
        sizes[row, here] = found[begin: begin + count]
        begin += count
