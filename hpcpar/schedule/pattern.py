"""The pattern of a movement, recognised from what ranks own and need: the decision behind every
communication step.

Every axis is decided from degrees and strides, never by walking ranks. Degrees and strides are
numbers, or arrays that are broadcast: one case each of a family of plans, or every configuration of
a producer against every configuration of a consumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.receptive_field import (
    Columns,
    Full,
    Granule,
    Groups,
    Offset,
    Same,
    Sliding,
    Window,
)
from hpcpar.plan.axis import Axis, all_intervals, tabulate
from hpcpar.plan.config import ONE, Config, Flags, Ints, MeshAxis
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import CODES, Group, Kind

#: Axes of a configuration along which gradients may be partial sums.
PARTIAL = ("n", "c", "d", "h", "w", "k")
KINDS: tuple[Kind | None, ...] = (None, *CODES)
#: By code, whether it is a collective's, and whether that sums.
COLLECTIVE = np.array([kind not in (None, Kind.HALO, Kind.REDISTRIBUTE) for kind in KINDS])
SUMS = np.array([kind in (Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE) for kind in KINDS])
_ALLGATHER, _REDISTRIBUTE = CODES[Kind.ALLGATHER], CODES[Kind.REDISTRIBUTE]


@dataclass(frozen=True)
class Pattern:
    """The pattern of a movement.

    Attributes
    ----------
    code : int
        One of `CODES`, 0 where nothing moves.
    adds : bool
        Messages of a halo exchange or a redistribution are added to what they meet.
    mesh_axes : tuple of MeshAxis
        Coordinates of a collective's group; of size 1 in cases where one does not belong to it.
    """

    code: np.int8 | NDArray[np.int8]
    adds: bool = False
    mesh_axes: tuple[MeshAxis, ...] = ()

    @property
    def reduce(self) -> Flags:
        """True where it sums."""
        return SUMS[self.code] | (self.adds & (self.code != 0) & ~COLLECTIVE[self.code])

    @property
    def kind(self) -> Kind | None:
        """The kind of a single case."""
        return KINDS[int(self.code)]

    @property
    def group(self) -> Group | None:
        """The group of a single case; None where there is no collective."""
        if not COLLECTIVE[self.code]:
            return None
        return Group(tuple(MeshAxis(int(d.stride), int(d.size)) for d in self.mesh_axes
                           if d.size > 1))


NOTHING = Pattern(np.int8(0))


def collective(kind: Kind, mesh_axes: tuple[MeshAxis, ...]) -> Pattern:
    """A collective over the ranks that differ in `mesh_axes`; nothing where these are one rank."""
    return Pattern(_any_cut(mesh_axes) * CODES[kind], False, mesh_axes)


def collective_along(kind: Kind, config: Config, names: tuple[str, ...]) -> Pattern:
    """A collective over the ranks that differ along some axes of a configuration."""
    return collective(kind, tuple(config.mesh_axes[name] for name in names))


# -- one axis --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cut:
    """How a layout cuts one axis: part ``mesh_axis.of(rank)`` of `mesh_axis.size` blocks.

    Attributes
    ----------
    exact : bool
        The parts are blocks, not widened by a halo.
    regular : bool
        The boxes follow the block rule.
    """

    mesh_axis: MeshAxis
    granule: int
    exact: Flags
    regular: Flags = True

    @property
    def parts(self) -> Ints:
        return self.mesh_axis.size


def cut(layout: Layout, axis: Axis) -> Cut:
    """How `layout` cuts `axis`."""
    mesh_axis, relation = layout.mesh_axes.get(axis.name, ONE), axis.relation
    if isinstance(relation, Same):
        return Cut(mesh_axis, axis.granule, True)
    if isinstance(relation, Full):
        return Cut(ONE, 1, True)
    if isinstance(relation, Granule | Columns):
        return Cut(mesh_axis, 1, True)
    whole = np.equal(mesh_axis.size, 1)
    if isinstance(relation, Offset):
        return Cut(mesh_axis, 1, whole, whole)
    if isinstance(relation, Groups):
        size = np.asarray(mesh_axis.size)
        coarse, fine = relation.groups % size == 0, size % relation.groups == 0
        stride = np.where(coarse, mesh_axis.stride, mesh_axis.stride * (size // relation.groups))
        parts = np.where(fine & ~coarse, relation.groups, size)
        return Cut(MeshAxis(stride, parts), 1, coarse | fine, coarse | fine)
    assert isinstance(relation, Sliding)
    pointwise = (isinstance(relation, Window) and relation.pointwise
                 and axis.extent == axis.out_extent)
    return Cut(mesh_axis, 1, whole | pointwise)


def _is_union(fine: Cut, coarse: Cut) -> Flags:
    """True where a part of `coarse` is a union of parts of `fine` held by neighbouring coordinates.
    """
    if fine.granule != coarse.granule:
        return np.equal(coarse.parts, 1)
    ratio, rest = np.divmod(fine.parts, coarse.parts)
    nested = (rest == 0) & np.equal(coarse.mesh_axis.stride, fine.mesh_axis.stride * ratio)
    return np.equal(coarse.parts, 1) | nested


@lru_cache(maxsize=50_000)
def _holds_needed(owned: Axis, needed: Axis, parts: int) -> bool:
    """True where every part owns the interval that it needs, halo included."""
    (own0, own1), (need0, need1) = all_intervals(owned, parts), all_intervals(needed, parts)
    return bool(((need1 <= need0) | ((own0 <= need0) & (need1 <= own1))).all())


@dataclass(frozen=True)
class AxisRelation:
    """How the needed intervals of an axis relate to the owned ones.

    Attributes
    ----------
    depends : MeshAxis
        The coordinate that decides which interval is needed.
    gather : MeshAxis
        Neighbours whose owned intervals together make up a needed one (size 1: none).
    narrow : MeshAxis
        Ranks that each need another piece of the same owned interval (size 1: none).
    halo : bool
        Needed intervals reach into other ranks' owned ones by windows.
    inexact : bool
        Some needed interval is no union of parts, though every rank may own what it needs.
    irregular : bool
        None of the simple relations holds.
    """

    depends: MeshAxis
    gather: MeshAxis
    narrow: MeshAxis
    halo: Flags
    inexact: Flags
    irregular: Flags


def relate(owned: Layout, needed: Layout, a: Axis, b: Axis) -> AxisRelation:
    """Compare the owned axis `a` with the needed axis `b`."""
    have, want = cut(owned, a), cut(needed, b)
    irregular: Flags = np.logical_not(want.regular)
    inexact: Flags = False
    halo = np.logical_not(want.exact) & want.regular
    if np.any(halo):
        held = tabulate(partial(_holds_needed, a, b), want.parts, np.bool_)
        same_cut = (np.equal(want.mesh_axis.stride, have.mesh_axis.stride)
                    & np.equal(want.parts, have.parts))
        irregular = irregular | (halo & ~same_cut)
        inexact, halo = halo & same_cut & held, halo & same_cut & ~held
    gathers = _is_union(have, want) & want.exact
    narrows = _is_union(want, have) & want.exact & ~gathers
    return AxisRelation(
        want.mesh_axis,
        MeshAxis(have.mesh_axis.stride, np.where(gathers, have.parts // want.parts, 1)),
        MeshAxis(want.mesh_axis.stride, np.where(narrows, want.parts // have.parts, 1)),
        halo, inexact, irregular | (want.exact & np.logical_not(gathers | narrows)),
    )


# -- all axes --------------------------------------------------------------------------------------
def patterns(owned: Layout, needed: Layout) -> tuple[Pattern, Pattern]:
    """The movement from owned boxes to needed ones, and its adjoint for the gradients."""
    axes = [relate(owned, needed, a, b) for a, b in zip(owned.axes, needed.axes, strict=True)
            if _is_cut(owned, a) or _is_cut(needed, b)]
    gathers = tuple(r.gather for r in axes if _some_cut(r.gather))
    narrows = tuple(r.narrow for r in axes if _some_cut(r.narrow))
    a, b = owned.config, needed.config
    irregular: Flags = np.not_equal(a.first, b.first) | np.not_equal(a.ranks, b.ranks)
    halo: Flags = False
    inexact: Flags = False
    for r in axes:
        irregular, halo, inexact = irregular | r.irregular, halo | r.halo, inexact | r.inexact
    # a gathered box must be the same for the whole group
    for group in gathers:
        for r in axes:
            irregular = irregular | _share_factors(group, r.depends)
    gather, narrow = _any_cut(gathers), _any_cut(narrows)

    general = irregular | (gather & (halo | inexact | narrow))
    forward = np.where(general, _REDISTRIBUTE,
                       np.where(gather, _ALLGATHER, np.where(halo, CODES[Kind.HALO], 0)))
    sums = partial_axes(needed)
    same_group = _same_axes(gathers, sums)
    backward = _adjoint_code(_any_cut(sums), same_group, gather, narrow, halo, inexact, irregular)
    # the adjoint gathers where the forward pass took boxes apart, and sums elsewhere
    gathers_back = backward == _ALLGATHER
    mesh_axes = [MeshAxis(d.stride, np.where(gathers_back, 1, d.size)) for d in sums]
    mesh_axes += [MeshAxis(d.stride, np.where(gathers_back, d.size, 1)) for d in narrows]
    return Pattern(forward, False, gathers), Pattern(backward, True, tuple(mesh_axes))


def _adjoint_code(partial: Flags, same_group: Flags, gather: Flags, narrow: Flags, halo: Flags,
                  inexact: Flags, irregular: Flags) -> NDArray[np.int8]:
    """The code of the adjoint of a movement.

    Parameters
    ----------
    partial : bool
        Gradients are partial sums.
    same_group : bool
        The ranks over which they are partial sums are those that together gather a needed box.
    """
    complete = np.where(
        halo, np.where(gather | narrow, _REDISTRIBUTE, CODES[Kind.HALO]),
        # pieces of a box that several ranks own: put together what the forward pass took apart
        np.where(narrow, np.where(gather | inexact, _REDISTRIBUTE, _ALLGATHER), 0),
    )
    summed = np.where(
        halo | inexact | narrow, _REDISTRIBUTE,
        np.where(np.logical_not(gather), CODES[Kind.ALLREDUCE],
                 np.where(same_group, CODES[Kind.REDUCE_SCATTER], _REDISTRIBUTE)),
    )
    return np.where(irregular, _REDISTRIBUTE, np.where(partial, summed, complete))


def partial_axes(needed: Layout) -> tuple[MeshAxis, ...]:
    """Coordinates over which the gradients of a needed box are partial sums: those of parts of the
    work that need the same box.
    """
    out = []
    by_name = {a.name: a for a in needed.axes}
    for name in PARTIAL:
        if f"all {name}" in by_name:
            continue  # the layer's output has no such axis: ranks along it are replicas
        mesh_axis = needed.config.mesh_axes[name]
        kept = cut(needed, by_name[name]).parts if name in by_name else 1
        out.append(MeshAxis(mesh_axis.stride, mesh_axis.size // kept))
    return tuple(mesh_axis for mesh_axis in out if _some_cut(mesh_axis))


def _is_cut(layout: Layout, axis: Axis) -> bool:
    return bool(np.any(np.greater(layout.degree(axis), 1)))


def _some_cut(mesh_axis: MeshAxis) -> bool:
    return bool(np.any(np.greater(mesh_axis.size, 1)))


def _any_cut(mesh_axes: tuple[MeshAxis, ...]) -> Flags:
    """True in cases in which some coordinate has more than one part."""
    out: Flags = np.bool_(False)
    for mesh_axis in mesh_axes:
        out = out | np.greater(mesh_axis.size, 1)
    return out


def _share_factors(a: MeshAxis, b: MeshAxis) -> Flags:
    """True where two coordinates of more than one part are made of common factors of the rank."""
    overlap = (a.stride < b.stride * b.size) & (b.stride < a.stride * a.size)
    return np.greater(a.size, 1) & np.greater(b.size, 1) & overlap


def _same_axes(a: tuple[MeshAxis, ...], b: tuple[MeshAxis, ...]) -> Flags:
    """True where both name the same coordinates; those of one part do not count."""
    out: Flags = np.bool_(True)
    for some, others in ((a, b), (b, a)):
        for x in some:
            found: Flags = np.equal(x.size, 1)
            for y in others:
                found = found | (np.equal(x.stride, y.stride) & np.equal(x.size, y.size))
            out = out & found
    return out
