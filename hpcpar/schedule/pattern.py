"""Decides the pattern of a movement, from the boxes that ranks own and the boxes that they need.

Each axis is classified from degrees and strides, never by walking ranks. The table `ROWS` combines
the axes; ``docs/explanation/schedule.md`` explains it. `hpcpar.schedule.pattern_family` looks up
the patterns of many configurations at once.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from enum import IntFlag
from functools import lru_cache
from typing import NamedTuple

from hpcpar.network.receptive_field import (
    Columns,
    Full,
    Granule,
    Groups,
    Irregular,
    Same,
    Sliding,
    Window,
)
from hpcpar.plan.axis import Axis, all_intervals
from hpcpar.plan.config import ONE, Flags, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import Kind, Pattern

#: Axes of a configuration along which gradients may be partial sums.
PARTIAL = ("n", "c", "d", "h", "w", "k")


# -- one axis --------------------------------------------------------------------------------------
class Cut(NamedTuple):
    """How a layout cuts one axis: a rank has block ``mesh_axis.of(rank)`` of `mesh_axis.size`.

    Attributes
    ----------
    exact : bool
        The parts are plain blocks, without a halo.
    regular : bool
        The boxes follow the block rule.
    """

    mesh_axis: MeshAxis
    granule: int = 1
    exact: bool = True
    regular: bool = True

    @property
    def parts(self) -> int:
        return int(self.mesh_axis.size)


def cut(axis: Axis, mesh_axis: MeshAxis) -> Cut:
    """How cutting a layer's output along `mesh_axis` cuts `axis`."""
    relation, parts = axis.relation, int(mesh_axis.size)
    if isinstance(relation, Same):
        return Cut(mesh_axis, axis.granule)
    if isinstance(relation, Full):
        return Cut(ONE)
    if isinstance(relation, Granule | Columns) or parts == 1:
        return Cut(mesh_axis)
    if isinstance(relation, Irregular):
        return Cut(mesh_axis, exact=False, regular=False)
    if isinstance(relation, Groups):
        if relation.groups % parts == 0:
            return Cut(mesh_axis)
        if parts % relation.groups == 0:  # each group has several parts of the output
            stride = mesh_axis.stride * (parts // relation.groups)
            return Cut(MeshAxis(stride, relation.groups))
        return Cut(mesh_axis, exact=False, regular=False)
    assert isinstance(relation, Sliding)
    pointwise = (isinstance(relation, Window) and relation.pointwise
                 and axis.extent == axis.out_extent)
    return Cut(mesh_axis, exact=pointwise)


def _is_union(fine: Cut, coarse: Cut) -> bool:
    """True where each part of `coarse` is a union of neighboring parts of `fine`."""
    if coarse.parts == 1:
        return True
    ratio, rest = divmod(fine.parts, coarse.parts)
    return (fine.granule == coarse.granule and rest == 0
            and bool(coarse.mesh_axis.stride == fine.mesh_axis.stride * ratio))


@lru_cache(maxsize=50_000)
def _holds_needed(owned: Axis, needed: Axis, parts: int) -> bool:
    """True where every part owns its needed interval, halo included."""
    (own0, own1), (need0, need1) = all_intervals(owned, parts), all_intervals(needed, parts)
    return bool(((need1 <= need0) | ((own0 <= need0) & (need1 <= own1))).all())


class Fit(IntFlag):
    """How needed intervals relate to owned intervals along an axis, or along several axes.

    Attributes
    ----------
    EQUAL
        Both are the same.
    WITHIN
        Windows widen the needed interval, but the rank owns all of it.
    HALO
        Windows widen the needed interval into the owned intervals of other ranks.
    GATHER
        The needed interval is the union of neighbors' owned intervals.
    NARROW
        Neighbors own the same interval, and each needs a different piece of it.
    IRREGULAR
        None of these.
    """

    EQUAL = 0
    WITHIN = 1
    HALO = 2
    GATHER = 4
    NARROW = 8
    IRREGULAR = 16


class AxisRelation(NamedTuple):
    """How the needed intervals of an axis relate to the owned intervals.

    Attributes
    ----------
    depends : MeshAxis
        The coordinate that determines which interval a rank needs.
    among : MeshAxis
        The neighbors of `Fit.GATHER` and `Fit.NARROW`; else one rank.
    """

    fit: Fit
    depends: MeshAxis
    among: MeshAxis = ONE


def relate(owned: Axis, needed: Axis, source: Cut, target: Cut) -> AxisRelation:
    """Compare an axis of the owned boxes, cut as `source`, with that axis of the needed boxes."""
    depends = target.mesh_axis
    if not target.exact:
        same = (depends.stride, target.parts) == (source.mesh_axis.stride, source.parts)
        if not (target.regular and same):
            return AxisRelation(Fit.IRREGULAR, depends)
        within = _holds_needed(owned, needed, target.parts)
        return AxisRelation(Fit.WITHIN if within else Fit.HALO, depends)
    if _is_union(source, target):
        ratio = source.parts // target.parts
        if ratio == 1:
            return AxisRelation(Fit.EQUAL, depends)
        return AxisRelation(Fit.GATHER, depends, MeshAxis(source.mesh_axis.stride, ratio))
    if _is_union(target, source):
        pieces = MeshAxis(depends.stride, target.parts // source.parts)
        return AxisRelation(Fit.NARROW, depends, pieces)
    return AxisRelation(Fit.IRREGULAR, depends)


# -- all axes --------------------------------------------------------------------------------------
#: The movement, its adjoint for complete gradients, and its adjoint for gradients that are partial
#: sums. `REDUCE_SCATTER` requires that the ranks that share a sum also gather the box. `ALLGATHER`
#: follows an allreduce among the ranks that share a sum.
Row = tuple[Kind | None, Kind | None, Kind | None]
ROWS: dict[Fit, Row] = {
    Fit.EQUAL: (None, None, Kind.ALLREDUCE),
    Fit.WITHIN: (None, None, Kind.REDISTRIBUTE),
    Fit.HALO: (Kind.HALO, Kind.HALO, Kind.REDISTRIBUTE),
    Fit.HALO | Fit.WITHIN: (Kind.HALO, Kind.HALO, Kind.REDISTRIBUTE),
    Fit.GATHER: (Kind.ALLGATHER, None, Kind.REDUCE_SCATTER),
    Fit.GATHER | Fit.WITHIN: (Kind.REDISTRIBUTE, None, Kind.REDISTRIBUTE),
    Fit.NARROW: (None, Kind.ALLGATHER, Kind.ALLGATHER),
    Fit.NARROW | Fit.WITHIN: (None, Kind.REDISTRIBUTE, Kind.REDISTRIBUTE),
    Fit.NARROW | Fit.HALO: (Kind.HALO, Kind.REDISTRIBUTE, Kind.REDISTRIBUTE),
    Fit.NARROW | Fit.HALO | Fit.WITHIN: (Kind.HALO, Kind.REDISTRIBUTE, Kind.REDISTRIBUTE),
}
ANYTHING_ELSE: Row = (Kind.REDISTRIBUTE, Kind.REDISTRIBUTE, Kind.REDISTRIBUTE)


def patterns(owned: Layout, needed: Layout) -> tuple[Pattern, Pattern, Pattern]:
    """The movement from owned to needed boxes, its adjoint for the gradients, and the sum of
    gradients of the same needed box that precedes an adjoint which gathers.
    """
    relations = [relate(a, b, cut(a, owned.mesh_axis(a)), cut(b, needed.mesh_axis(b)))
                 for a, b in zip(owned.axes, needed.axes, strict=True)]
    gathers = tuple(r.among for r in relations if r.fit is Fit.GATHER)
    narrows = tuple(r.among for r in relations if r.fit is Fit.NARROW)
    fits = functools.reduce(operator.or_, (r.fit for r in relations), Fit.EQUAL)
    a, b = owned.config, needed.config
    # a gathered box must be the same on the whole group
    if (a.first, a.ranks) != (b.first, b.ranks) or any(
            share_factors(x, r.depends) for x, r in itertools.product(gathers, relations)):
        fits = Fit.IRREGULAR
    forward, complete, summed = ROWS.get(fits, ANYTHING_ELSE)
    sums = partial_axes(needed)
    if summed is Kind.REDUCE_SCATTER and set(gathers) != set(sums):
        summed = Kind.REDISTRIBUTE
    gathers_back = (summed if sums else complete) is Kind.ALLGATHER
    total = Pattern(Kind.ALLREDUCE if gathers_back and sums else None, False, sums)
    back = (Pattern(complete, True, narrows) if gathers_back or not sums else
            Pattern(summed, True, sums))
    return Pattern(forward, False, gathers), back, total


def partial_axes(needed: Layout) -> tuple[MeshAxis, ...]:
    """Coordinates over which gradients are partial sums: their ranks need the same box."""
    mesh_axes = needed.config.mesh_axes
    sums = (summed_over(axis, mesh_axes[name]) for name, axis in may_sum(needed.axes))
    return tuple(mesh_axis for mesh_axis in sums if mesh_axis.size > 1)


def may_sum(axes: Sequence[Axis]) -> list[tuple[str, Axis | None]]:
    """Axes of a configuration along which gradients may be partial sums, with the axes they cut.

    Ranks are replicas along an axis that the layer's output does not have.
    """
    by_name = {axis.name: axis for axis in axes}
    return [(name, by_name.get(name)) for name in PARTIAL if f"all {name}" not in by_name]


def summed_over(axis: Axis | None, mesh_axis: MeshAxis) -> MeshAxis:
    """The coordinate over which parts along `mesh_axis` need the same interval of `axis`."""
    distinct = 1 if axis is None else cut(axis, mesh_axis).parts
    return MeshAxis(mesh_axis.stride, mesh_axis.size // distinct)


def share_factors(a: MeshAxis, b: MeshAxis) -> Flags:
    """True where two coordinates with several parts depend on common factors of the rank."""
    overlap = (a.stride < b.stride * b.size) & (b.stride < a.stride * a.size)
    return (a.size > 1) & (b.size > 1) & overlap
