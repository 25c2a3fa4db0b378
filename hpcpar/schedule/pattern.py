"""Recognising the pattern of a movement from what ranks hold and want: the decision behind every communication step.

Everything is decided per axis from degrees and strides, never by walking ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.relation import Full, Granule, Groups, Same, Window
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Axis, Layout, sample
from hpcpar.schedule.steps import Group, Kind


@dataclass(frozen=True)
class Cut:
    """How a layout cuts one axis: part ``digit.of(rank)`` of `digit.size` blocks, exactly or widened by a halo."""

    digit: Digit
    granule: int
    exact: bool
    regular: bool = True

    @property
    def parts(self) -> int:
        return self.digit.size


def cut(layout: Layout, axis: Axis) -> Cut:
    """How `layout` cuts `axis`; irregular where the boxes are not those of the block rule."""
    digit = layout.config.digits.get(axis.name, Digit(1, 1))
    relation = axis.relation
    if isinstance(relation, Same):
        return Cut(digit, axis.granule, True)
    if isinstance(relation, Full):
        return Cut(Digit(1, 1), 1, True)
    if isinstance(relation, Granule):
        return Cut(digit, 1, True)
    if isinstance(relation, Groups):
        if relation.groups % digit.size == 0:
            return Cut(digit, 1, True)
        if digit.size % relation.groups == 0:
            return Cut(Digit(digit.stride * (digit.size // relation.groups), relation.groups), 1, True)
        return Cut(digit, 1, False, regular=False)
    assert isinstance(relation, Window)
    return Cut(digit, 1, digit.size == 1 or relation == Window(1))


@dataclass(frozen=True)
class Pattern:
    """A movement: its kind (None where nothing moves), whether it sums, and the group of a collective."""

    kind: Kind | None
    reduce: bool = False
    group: Group | None = None


@dataclass
class Relation:
    """How needed boxes relate to owned ones, over all axes.

    Attributes
    ----------
    gather : list of Digit
        Neighbours whose owned boxes together make up a needed box.
    narrow : list of Digit
        Ranks that each need another piece of the same owned box.
    halo : bool
        Needed boxes reach into other ranks' owned boxes by windows.
    inexact : bool
        Some needed box is not a union of parts, though every rank may hold what it needs.
    irregular : bool
        None of the simple relations holds.
    """

    gather: list[Digit]
    narrow: list[Digit]
    halo: bool = False
    inexact: bool = False
    irregular: bool = False


def _union(fine: Cut, coarse: Cut) -> bool:
    """True where each part of `coarse` is a union of consecutive parts of `fine` held by neighbouring coordinates."""
    if coarse.parts == 1:
        return True
    ratio, rest = divmod(fine.parts, coarse.parts)
    return rest == 0 and fine.granule == coarse.granule and coarse.digit.stride == fine.digit.stride * ratio


def _covered(held: Layout, wanted: Layout, a: Axis, b: Axis) -> bool:
    """True where every rank already holds the interval that it wants, halo included."""
    n = held.degree(a)
    for i in sample(n):
        h, w = a.interval(n, i), b.interval(n, i)
        if w[1] > w[0] and not (h[0] <= w[0] and w[1] <= h[1]):
            return False
    return True


def relate(owned: Layout, needed: Layout) -> Relation:
    """Compare what ranks own of a tensor with what they need of it."""
    out = Relation([], [])
    depends: list[Digit] = []
    for a, b in zip(owned.axes, needed.axes, strict=True):
        have, want = cut(owned, a), cut(needed, b)
        if want.parts > 1:
            depends.append(want.digit)
        if not want.regular:
            out.irregular = True
        elif not want.exact:
            if want.digit != have.digit:
                out.irregular = True
            elif _covered(owned, needed, a, b):
                out.inexact = True
            else:
                out.halo = True
        elif _union(have, want):
            if have.parts > want.parts:
                out.gather.append(Digit(have.digit.stride, have.parts // want.parts))
        elif _union(want, have):
            out.narrow.append(Digit(want.digit.stride, want.parts // have.parts))
        else:
            out.irregular = True
    # a gathered box must be the same for the whole group
    if any(g.overlaps(d) for g in out.gather for d in depends):
        out.irregular = True
    return out


def forward_pattern(owned: Layout, needed: Layout) -> Pattern:
    """From owned boxes (disjoint parts, maybe replicated) to needed boxes."""
    rel = relate(owned, needed)
    if rel.irregular or (rel.gather and (rel.halo or rel.inexact or rel.narrow)):
        return Pattern(Kind.REDISTRIBUTE)
    if rel.gather:
        return Pattern(Kind.ALLGATHER, group=Group(tuple(rel.gather)))
    return Pattern(Kind.HALO) if rel.halo else Pattern(None)


def partial_digits(needed: Layout) -> list[Digit]:
    """Digits over which the gradients of a needed box are partial sums: parts that need the same box."""
    out = []
    by_name = {a.name: a for a in needed.axes}
    for name in ("n", "c", "h", "w"):
        digit = needed.config.digits[name]
        kept = cut(needed, by_name[name]).parts if name in by_name else 1
        if digit.size > kept:
            out.append(Digit(digit.stride, digit.size // kept))
    return out


def backward_pattern(owned: Layout, needed: Layout) -> Pattern:
    """The adjoint: from gradients of needed boxes (partial sums where parts need the same) to totals on owned boxes."""
    rel, partial = relate(owned, needed), partial_digits(needed)
    general = Pattern(Kind.REDISTRIBUTE, reduce=True)
    if rel.irregular:
        return general
    if not partial:
        if rel.halo:
            return general if rel.gather or rel.narrow else Pattern(Kind.HALO, reduce=True)
        if not rel.narrow:
            return Pattern(None)
        # complete gradients of pieces of a box that several ranks own alike: put together what the forward pass took apart
        return general if rel.gather or rel.inexact else Pattern(Kind.ALLGATHER, group=Group(tuple(rel.narrow)))
    if rel.halo or rel.inexact or rel.narrow:
        return general
    if not rel.gather:
        return Pattern(Kind.ALLREDUCE, reduce=True, group=Group(tuple(partial)))
    if set(rel.gather) == set(partial):
        return Pattern(Kind.REDUCE_SCATTER, reduce=True, group=Group(tuple(partial)))
    return general
