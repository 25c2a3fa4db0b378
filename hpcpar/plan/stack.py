"""Several tensors of one structure as one: their sizes and windows become arrays, so that all of them are lowered and priced in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hpcpar.network.relation import Groups, Relation
from hpcpar.plan.layout import Axis, Layout


def structure(layout: Layout) -> Any:
    """Equal for layouts that can be stacked: the same axes, cut alike, related alike, under the same configuration."""
    axes = tuple(
        (a.name, a.granule, type(a.relation), a.pointwise, a.relation.groups if isinstance(a.relation, Groups) else 0) for a in layout.axes
    )
    return (axes, layout.config.key, layout.summed, layout.partial)


def stack(layouts: Sequence[Layout]) -> Layout:
    """One layout for several of one structure; arrays have the stack as their first axis, before two of cases."""
    first = layouts[0]
    found = replace(first, axes=tuple(stack_axes(axes) for axes in zip(*(layout.axes for layout in layouts), strict=True)))
    found.memo["members"] = tuple(layouts)
    return found


def members(*layouts: Layout) -> list[tuple[Layout, ...]]:
    """Of each of some layouts those that were stacked; of one that is no stack, or whose tensors are alike, itself."""
    found = [layout.memo.get("members", (layout,)) for layout in layouts]
    stacked = any(a.variants for layout in layouts for a in layout.axes)
    return found if stacked else [each[:1] for each in found]


def _column(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else np.array(values, np.int64).reshape(-1, 1, 1)


def stack_axes(axes: Sequence[Axis]) -> Axis:
    """One axis for several that are related alike."""
    if len(set(axes)) == 1:
        return axes[0]
    relation = _relation([a.relation for a in axes])
    return Axis(
        axes[0].name, _column([a.extent for a in axes]), _column([a.out_extent for a in axes]), axes[0].granule, relation, tuple(axes)
    )


def _relation(found: list[Relation]) -> Relation:
    return type(found[0])(**{f.name: _column([getattr(r, f.name) for r in found]) for f in fields(found[0])})
