"""Decides the patterns of many configurations at once.

`hpcpar.schedule.pattern` decides each distinct case once; arrays spread the results over all cases.

A search compares every configuration of a producer with every one of a consumer: hundreds of
thousands of pairs, but only a few thousand distinct axis relations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcpar.plan.axis import Axis, IntArray
from hpcpar.plan.config import ONE, Config, Flags, Ints, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule import pattern
from hpcpar.schedule.pattern import ANYTHING_ELSE, AxisRelation, Fit
from hpcpar.schedule.steps import CODES, AnyPattern, Codes, Kind, Pattern, PatternFamily

#: `ROWS` as codes: [3, combinations of `Fit`].
_CODES = np.array([[Pattern(kind).code for kind in pattern.ROWS.get(Fit(fits), ANYTHING_ELSE)]
                   for fits in range(2 * Fit.IRREGULAR)]).T.copy()


def collective(kind: Kind, mesh_axes: tuple[MeshAxis, ...]) -> AnyPattern:
    """A collective over the ranks that differ in `mesh_axes`; nothing moves within one rank."""
    members = math.prod(d.size for d in mesh_axes)
    if isinstance(members, np.ndarray):
        return PatternFamily((members > 1) * CODES[kind], False, mesh_axes)
    return Pattern(kind if members > 1 else None, False, mesh_axes)


def collective_along(kind: Kind, config: Config, names: tuple[str, ...]) -> AnyPattern:
    """A collective over the ranks that differ along some axes of a configuration."""
    return collective(kind, tuple(config.mesh_axes[name] for name in names))


def patterns(owned: Layout, needed: Layout) -> tuple[AnyPattern, AnyPattern, AnyPattern]:
    """`hpcpar.schedule.pattern.patterns` for a single plan, or for every case of a family."""
    a, b = owned.config, needed.config
    if not (isinstance(a.ranks, np.ndarray) or isinstance(b.ranks, np.ndarray)):
        return pattern.patterns(owned, needed)
    relations = [_Relations.of(x, y, owned.mesh_axis(x), needed.mesh_axis(y))
                 for x, y in zip(owned.axes, needed.axes, strict=True)
                 if _is_cut(owned, x) or _is_cut(needed, y)]
    gathers, narrows = ([r.among(fit) for r in relations if r.occurs(fit)]
                        for fit in (Fit.GATHER, Fit.NARROW))
    irregular = np.not_equal(a.first, b.first) | np.not_equal(a.ranks, b.ranks)
    for group, r in itertools.product(gathers, relations):
        irregular = irregular | pattern.share_factors(group, r.depends)
    fits = irregular * np.int8(Fit.IRREGULAR)
    for r in relations:
        fits = fits | r.fits
    sums = [look_up(partial(pattern.summed_over, axis), needed.config.mesh_axes[name])
            for name, axis in pattern.may_sum(needed.axes)]
    forward, complete, summed = _CODES[:, fits]
    summed = np.where((summed == CODES[Kind.REDUCE_SCATTER]) & ~_same_axes(gathers, sums),
                      CODES[Kind.REDISTRIBUTE], summed)
    back = np.where(np.greater(math.prod(d.size for d in sums), 1), summed, complete)
    # where the forward pass narrows boxes, the adjoint sums in place and gathers
    gathers_back = back == CODES[Kind.ALLGATHER]
    mesh_axes = [MeshAxis(d.stride, np.where(gathers_back, 1, d.size)) for d in sums]
    mesh_axes += [MeshAxis(d.stride, np.where(gathers_back, d.size, 1)) for d in narrows]
    in_place = [MeshAxis(d.stride, np.where(gathers_back, d.size, 1)) for d in sums]
    return (PatternFamily(forward, False, tuple(gathers)),
            PatternFamily(back, True, tuple(mesh_axes)),
            collective(Kind.ALLREDUCE, tuple(in_place)))


def _is_cut(layout: Layout, axis: Axis) -> bool:
    """True if an axis has several parts in some case."""
    return bool(np.any(np.greater(layout.degree(axis), 1)))


# -- distinct cases --------------------------------------------------------------------------------
def _distinct(mesh_axis: MeshAxis) -> tuple[list[MeshAxis], IntArray]:
    """The distinct coordinates of a family, and the index of every case's coordinate in them."""
    strides, sizes = np.broadcast_arrays(mesh_axis.stride, mesh_axis.size)
    indices: dict[tuple[int, int], int] = {}
    index = [indices.setdefault(case, len(indices))
             for case in zip(strides.ravel().tolist(), sizes.ravel().tolist(), strict=True)]
    return [MeshAxis(*case) for case in indices], np.array(index).reshape(strides.shape)


def _spread(distinct: Sequence[MeshAxis], index: IntArray) -> MeshAxis:
    """``distinct[index]``, as a coordinate of the family."""
    strides, sizes = np.array([(d.stride, d.size) for d in distinct]).T
    return MeshAxis(strides[index], sizes[index])


def look_up(function: Callable[[MeshAxis], MeshAxis], mesh_axis: MeshAxis) -> MeshAxis:
    """``function(mesh_axis)`` in every case; called once per distinct coordinate."""
    if not isinstance(mesh_axis.size, np.ndarray):
        return function(mesh_axis)
    distinct, index = _distinct(mesh_axis)
    return _spread([function(d) for d in distinct], index)


def cut_parts(layout: Layout, axis: Axis) -> Ints:
    """The number of parts that `hpcpar.schedule.pattern.cut` makes, in every case."""
    return look_up(lambda d: pattern.cut(axis, d).mesh_axis, layout.mesh_axis(axis)).size


@dataclass(frozen=True)
class _Relations:
    """The relation of an axis in every case of a family: ``distinct[index]``."""

    distinct: list[AxisRelation]
    index: IntArray
    depends: MeshAxis

    @classmethod
    def of(cls, a: Axis, b: Axis, owned: MeshAxis, needed: MeshAxis) -> _Relations:
        """`pattern.relate` in every case; called once per distinct pair of coordinates."""
        (sources, row), (targets, column) = _distinct(owned), _distinct(needed)
        rows = [pattern.cut(a, d) for d in sources]
        columns = [pattern.cut(b, d) for d in targets]
        pair = row * len(columns) + column
        occurs = np.bincount(pair.ravel(), minlength=len(rows) * len(columns)) > 0
        distinct = [pattern.relate(a, b, rows[at // len(columns)], columns[at % len(columns)])
                    for at in np.flatnonzero(occurs).tolist()]
        return cls(distinct, (np.cumsum(occurs) - 1)[pair],
                   _spread([target.mesh_axis for target in columns], column))

    @property
    def fits(self) -> Codes:
        return np.array([r.fit for r in self.distinct], np.int8)[self.index]

    def occurs(self, fit: Fit) -> bool:
        return any(r.fit is fit for r in self.distinct)

    def among(self, fit: Fit) -> MeshAxis:
        """The neighbors in cases with this fit; one rank in other cases."""
        return _spread([r.among if r.fit is fit else ONE for r in self.distinct], self.index)


def _same_axes(a: Sequence[MeshAxis], b: Sequence[MeshAxis]) -> Flags:
    """True where both have the same coordinates, apart from coordinates of size 1."""
    same: Flags = np.bool_(True)
    for some, others in ((a, b), (b, a)):
        for x in some:
            matched: Flags = np.equal(x.size, 1)
            for y in others:
                matched = matched | (np.equal(x.stride, y.stride) & np.equal(x.size, y.size))
            same = same & matched
    return same
