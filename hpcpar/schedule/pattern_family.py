"""Patterns of many configurations at once: every distinct case is decided once, by
`hpcpar.schedule.pattern`, and taken back into arrays.

A search compares every configuration of a producer with every one of a consumer, hundreds of
thousands of pairs with a few thousand different relations of axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.axis import Axis, IntArray
from hpcpar.plan.config import ONE, Config, Flags, Ints, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule import pattern
from hpcpar.schedule.pattern import ANYTHING_ELSE, AxisRelation, Fit, Pattern
from hpcpar.schedule.steps import CODES, Kind

Codes: TypeAlias = NDArray[np.int8]
#: `ROWS` as codes: [3, combinations of `Fit`].
_CODES = np.array([[Pattern(kind).code for kind in pattern.ROWS.get(Fit(fits), ANYTHING_ELSE)]
                   for fits in range(2 * Fit.IRREGULAR)]).T.copy()


@dataclass(frozen=True)
class PatternFamily:
    """The patterns of a movement in the cases of a family; see `Pattern`.

    Attributes
    ----------
    code : ndarray
        By case one of `CODES`, 0 where nothing moves.
    mesh_axes : tuple of MeshAxis
        Of size 1 in cases where one does not belong to the group.
    """

    code: Codes
    adds: bool = False
    mesh_axes: tuple[MeshAxis, ...] = ()

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of movement that occur in some case."""
        occurs = np.bincount(np.ravel(self.code), minlength=len(CODES) + 1)
        return [kind for kind, code in CODES.items() if occurs[code]]


#: The pattern of a single plan, or those of a family of plans.
AnyPattern: TypeAlias = Pattern | PatternFamily


def collective(kind: Kind, mesh_axes: tuple[MeshAxis, ...]) -> AnyPattern:
    """A collective over the ranks that differ in `mesh_axes`; nothing where these are one rank."""
    members = math.prod(d.size for d in mesh_axes)
    if isinstance(members, np.ndarray):
        return PatternFamily((members > 1) * CODES[kind], False, mesh_axes)
    return Pattern(kind if members > 1 else None, False, mesh_axes)


def collective_along(kind: Kind, config: Config, names: tuple[str, ...]) -> AnyPattern:
    """A collective over the ranks that differ along some axes of a configuration."""
    return collective(kind, tuple(config.mesh_axes[name] for name in names))


def patterns(owned: Layout, needed: Layout) -> tuple[AnyPattern, AnyPattern]:
    """`hpcpar.schedule.pattern.patterns` of a single plan, or of every case of a family."""
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
    # the adjoint gathers where the forward pass took boxes apart, and sums elsewhere
    gathers_back = back == CODES[Kind.ALLGATHER]
    mesh_axes = [MeshAxis(d.stride, np.where(gathers_back, 1, d.size)) for d in sums]
    mesh_axes += [MeshAxis(d.stride, np.where(gathers_back, d.size, 1)) for d in narrows]
    return (PatternFamily(forward, False, tuple(gathers)),
            PatternFamily(back, True, tuple(mesh_axes)))


def _is_cut(layout: Layout, axis: Axis) -> bool:
    """True where an axis has several parts in some case."""
    return bool(np.any(np.greater(layout.degree(axis), 1)))


# -- distinct cases --------------------------------------------------------------------------------
def _distinct(mesh_axis: MeshAxis) -> tuple[list[MeshAxis], IntArray]:
    """The distinct coordinates of a family, and the place of every case's among them."""
    strides, sizes = np.broadcast_arrays(mesh_axis.stride, mesh_axis.size)
    place: dict[tuple[int, int], int] = {}
    at = [place.setdefault(case, len(place))
          for case in zip(strides.ravel().tolist(), sizes.ravel().tolist(), strict=True)]
    return [MeshAxis(*case) for case in place], np.array(at).reshape(strides.shape)


def _taken(each: Sequence[MeshAxis], at: IntArray) -> MeshAxis:
    """The coordinates `each`, one for every case."""
    strides, sizes = np.array([(d.stride, d.size) for d in each]).T
    return MeshAxis(strides[at], sizes[at])


def look_up(function: Callable[[MeshAxis], MeshAxis], mesh_axis: MeshAxis) -> MeshAxis:
    """``function(mesh_axis)`` in every case; called once for each distinct coordinate."""
    if not isinstance(mesh_axis.size, np.ndarray):
        return function(mesh_axis)
    each, at = _distinct(mesh_axis)
    return _taken([function(d) for d in each], at)


def cut_parts(layout: Layout, axis: Axis) -> Ints:
    """Parts of `hpcpar.schedule.pattern.cut`, in every case."""
    return look_up(lambda d: pattern.cut(axis, d).mesh_axis, layout.mesh_axis(axis)).size


@dataclass(frozen=True)
class _Relations:
    """The relations of an axis in the cases of a family; see `pattern.AxisRelation`.

    Attributes
    ----------
    each : list of AxisRelation
        The distinct ones.
    case : ndarray
        By case its place among them.
    """

    each: list[AxisRelation]
    case: IntArray
    depends: MeshAxis

    @classmethod
    def of(cls, a: Axis, b: Axis, owned: MeshAxis, needed: MeshAxis) -> _Relations:
        """`pattern.relate` of every case; every distinct pair of coordinates is compared once."""
        (coordinates, row), (others, column) = _distinct(owned), _distinct(needed)
        rows = [pattern.cut(a, d) for d in coordinates]
        columns = [pattern.cut(b, d) for d in others]
        pair = row * len(columns) + column
        occurs = np.bincount(pair.ravel(), minlength=len(rows) * len(columns)) > 0
        each = [pattern.relate(a, b, rows[at // len(columns)], columns[at % len(columns)])
                for at in np.flatnonzero(occurs).tolist()]
        return cls(each, (np.cumsum(occurs) - 1)[pair],
                   _taken([want.mesh_axis for want in columns], column))

    @property
    def fits(self) -> Codes:
        return np.array([r.fit for r in self.each], np.int8)[self.case]

    def occurs(self, fit: Fit) -> bool:
        return any(r.fit is fit for r in self.each)

    def among(self, fit: Fit) -> MeshAxis:
        """The neighbours in cases of one fit; one rank in others."""
        return _taken([r.among if r.fit is fit else ONE for r in self.each], self.case)


def _same_axes(a: Sequence[MeshAxis], b: Sequence[MeshAxis]) -> Flags:
    """True where both name the same coordinates; those of one part do not count."""
    out: Flags = np.bool_(True)
    for some, others in ((a, b), (b, a)):
        for x in some:
            found: Flags = np.equal(x.size, 1)
            for y in others:
                found = found | (np.equal(x.stride, y.stride) & np.equal(x.size, y.size))
            out = out & found
    return out
