"""Recognising the pattern of a movement from what ranks hold and want: the decision behind every communication step.

Everything is decided per axis from degrees and strides, never by walking ranks, and for all cases of a family of plans at once: degrees,
strides and decisions are numbers or arrays with an entry for each case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.relation import Columns, Full, Granule, Groups, Offset, Same, Window
from hpcpar.plan.axis import entry
from hpcpar.plan.config import Config, Digit, Ints
from hpcpar.plan.layout import Axis, Layout, intervals, tabulate
from hpcpar.schedule.steps import CODES, Group, Kind

#: Axes of a configuration along which gradients may be partial sums.
PARTIAL = ("n", "c", "d", "h", "w", "k")
#: A decision, or one for each case.
Flags = Any
ONE = Digit(1, 1)


@dataclass(frozen=True)
class Cut:
    """How a layout cuts one axis: part ``digit.of(rank)`` of `digit.size` blocks, exactly or widened by a halo."""

    digit: Digit
    granule: Ints
    exact: Flags
    regular: Flags = True

    @property
    def parts(self) -> Any:
        return self.digit.size


def cut(layout: Layout, axis: Axis) -> Cut:
    """How `layout` cuts `axis`; irregular where the boxes are not those of the block rule."""
    return _cut(axis, layout.digits.get(axis.name, ONE))


def _cut(axis: Axis, digit: Digit) -> Cut:
    relation = axis.relation
    if isinstance(relation, Same):
        return Cut(digit, axis.granule, True)
    if isinstance(relation, Full):
        return Cut(ONE, 1, True)
    if isinstance(relation, Granule | Columns):
        return Cut(digit, 1, True)
    whole = np.equal(digit.size, 1)
    if isinstance(relation, Offset):
        return Cut(digit, 1, whole, whole)
    if isinstance(relation, Groups):
        size = np.asarray(digit.size)
        coarse, fine = relation.groups % size == 0, size % relation.groups == 0
        stride = np.where(coarse, digit.stride, digit.stride * (size // relation.groups))
        regular = coarse | fine
        return Cut(Digit(stride, np.where(fine & ~coarse, relation.groups, size)), 1, regular, regular)
    assert isinstance(relation, Window)
    return Cut(digit, 1, whole | relation.pointwise)


@dataclass(frozen=True)
class Pattern:
    """A movement: its kind (a code of `CODES`, 0 where nothing moves), whether it sums, and the coordinates of a collective's group.

    Attributes
    ----------
    digits : tuple of Digit
        Of size 1 where they do not belong to the group.
    """

    code: Any
    reduce: Flags
    digits: tuple[Digit, ...] = ()

    @property
    def kind(self) -> Kind | None:
        """The kind of a single case."""
        return KINDS[int(self.code)]

    @property
    def group(self) -> Group | None:
        """The group of a single case; None for point-to-point patterns and where nothing moves."""
        if self.kind in (None, Kind.HALO, Kind.REDISTRIBUTE):
            return None
        return Group(tuple(Digit(int(d.stride), int(d.size)) for d in self.digits if d.size > 1))


KINDS: tuple[Kind | None, ...] = (None, *CODES)
NOTHING = Pattern(np.int8(0), False)


def collective(kind: Kind, digits: tuple[Digit, ...]) -> Pattern:
    """A collective over the ranks that differ in `digits`; nothing where these are a single rank."""
    some: Flags = False
    for d in digits:
        some = some | np.greater(d.size, 1)
    return Pattern(np.where(some, CODES[kind], 0), kind is not Kind.ALLGATHER and kind is not Kind.BROADCAST, digits)


def collective_along(kind: Kind, config: Config, names: tuple[str, ...]) -> Pattern:
    """A collective over the ranks that differ along some axes of a configuration; the same object for layers that share it."""

    def work_out() -> Pattern:
        return collective(kind, tuple(config.digits[name] for name in names))

    return config.remembered((kind, names), work_out) if config.shared else work_out()


@dataclass
class Relation:
    """How needed boxes relate to owned ones, over all axes.

    Attributes
    ----------
    gather : list of Digit
        Neighbours whose owned boxes together make up a needed box (size 1: none).
    narrow : list of Digit
        Ranks that each need another piece of the same owned box (size 1: none).
    halo : bool
        Needed boxes reach into other ranks' owned boxes by windows.
    inexact : bool
        Some needed box is not a union of parts, though every rank may hold what it needs.
    irregular : bool
        None of the simple relations holds.
    """

    gather: list[Digit]
    narrow: list[Digit]
    halo: Flags = False
    inexact: Flags = False
    irregular: Flags = False

    @classmethod
    def of(cls, axes: Sequence[Facing], elsewhere: Flags) -> Relation:
        """Over all axes; `elsewhere` where the layers live on different ranks."""
        out = cls([], [], irregular=elsewhere)
        for axis in axes:
            out.halo, out.inexact, out.irregular = out.halo | axis.halo, out.inexact | axis.inexact, out.irregular | axis.irregular
            for found, digit in ((out.gather, axis.gather), (out.narrow, axis.narrow)):
                if _some(np.greater(digit.size, 1)):
                    found.append(digit)
        depends = [axis.depends for axis in axes if _some(np.greater(axis.depends.size, 1))]
        if out.gather and depends:
            out.irregular = out.irregular | _where(_any(out.gather) & np.logical_not(out.irregular), mixed_digits, out.gather, depends)
        return out


def _union(fine: Cut, coarse: Cut) -> Flags:
    """True where each part of `coarse` is a union of consecutive parts of `fine` held by neighbouring coordinates."""
    ratio, rest = np.divmod(fine.parts, coarse.parts)
    nested = np.equal(fine.granule, coarse.granule) & (rest == 0) & (coarse.digit.stride == fine.digit.stride * ratio)
    return np.equal(coarse.parts, 1) | nested


@lru_cache(maxsize=50_000)
def covered(held: Axis, wanted: Axis, parts: int) -> bool:
    """True where every part holds the interval that it wants, halo included."""
    (h0, h1), (w0, w1) = intervals(held, parts), intervals(wanted, parts)
    return bool(((w1 <= w0) | ((h0 <= w0) & (w1 <= h1))).all())


def _some(flags: Flags) -> bool:
    return bool(flags.any() if isinstance(flags, np.ndarray) else flags)


class Facing(NamedTuple):
    """How the needed intervals of an axis relate to the owned ones; see `Relation`.

    Attributes
    ----------
    depends : Digit
        The parts of what is needed.
    """

    depends: Digit
    gather: Digit
    narrow: Digit
    halo: Flags
    inexact: Flags
    irregular: Flags


def facing(a: Axis, b: Axis, x: Digit, y: Digit, inside: Callable[[], Flags]) -> Facing:
    """Compare an owned axis `a`, cut by `x`, with a needed one `b`, cut by `y`.

    Parameters
    ----------
    inside : callable
        Whether every part holds what it needs, for equal cuts; asked for only where that matters.
    """
    have, want = _cut(a, x), _cut(b, y)
    irregular = np.logical_not(want.regular)
    halo = np.logical_not(want.exact) & want.regular
    inexact: Flags = False
    if _some(halo):
        other = np.not_equal(want.digit.stride, have.digit.stride) | np.not_equal(want.parts, have.parts)
        held = inside()
        irregular, inexact, halo = irregular | (halo & other), halo & ~other & held, halo & ~other & ~held
    exact = np.asarray(want.exact)
    gathers, narrows = _union(have, want) & exact, _union(want, have) & exact
    gather, narrow = (Digit(fine.digit.stride, np.where(chosen, fine.parts // coarse.parts, 1))
                      for chosen, fine, coarse in ((gathers, have, want), (narrows & ~gathers, want, have)))
    return Facing(want.digit, gather, narrow, halo, inexact, irregular | (exact & ~gathers & ~narrows))


def relate(owned: Layout, needed: Layout) -> Relation:
    """Compare what ranks own of a tensor with what they need of it."""
    elsewhere = np.not_equal(owned.config.first, needed.config.first) | np.not_equal(owned.config.ranks, needed.config.ranks)
    axes = []
    for a, b in zip(owned.axes, needed.axes, strict=True):
        x, y = owned.digits.get(a.name, ONE), needed.digits.get(b.name, ONE)
        if _some(np.greater(x.size, 1)) or _some(np.greater(y.size, 1)):
            axes.append(facing(a, b, x, y, partial(tabulate, covered, (a, b), x.size)))
    return Relation.of(axes, elsewhere)


def _where(some: Flags, decide: Callable[..., Flags], *digits: Sequence[Digit]) -> Flags:
    """A decision about coordinates in some cases, and False in the others; it is worked out for these cases alone.

    Parameters
    ----------
    decide : callable
        From the strides and sizes, [digits, cases], of each list.
    """
    if not _some(some):
        return False
    shape = np.broadcast_shapes(np.shape(some), *(np.shape(v) for each in digits for d in each for v in (d.stride, d.size)))
    out = np.zeros(shape, bool)
    at = np.nonzero(np.atleast_1d(np.broadcast_to(some, shape)))
    columns = [np.empty((2, len(each), len(at[0])), np.int64) for each in digits]
    for column, each in zip(columns, digits, strict=True):
        for i, d in enumerate(each):
            column[0, i], column[1, i] = entry(d.stride, at), entry(d.size, at)
    out.reshape(shape or (1,))[at] = decide(*(Digit(*column) for column in columns))
    return out


def mixed_digits(groups: Digit, others: Digit) -> Flags:
    """True where a coordinate of a group and one that a box depends on share factors of the rank: the group's boxes differ."""
    stride, size = groups.stride[:, None], groups.size[:, None]
    overlap = (size > 1) & (others.size > 1) & (stride < others.stride * others.size) & (others.stride < stride * size)
    return overlap.any(axis=(0, 1))


def _any(digits: Sequence[Digit]) -> Flags:
    out: Flags = False
    for d in digits:
        out = out | np.greater(d.size, 1)
    return out


def patterns(owned: Layout, needed: Layout) -> tuple[Pattern, Pattern]:
    """Of the movement from owned boxes to needed ones, and of its adjoint."""
    rel = relate(owned, needed)
    return forward_pattern(rel), backward_pattern(rel, [d for d in partial_digits(needed).values() if _some(np.greater(d.size, 1))])


def forward_pattern(rel: Relation) -> Pattern:
    """From owned boxes (disjoint parts, maybe replicated) to needed boxes."""
    code = forward_code(_any(rel.gather), _any(rel.narrow), rel.halo, rel.inexact, rel.irregular)
    return Pattern(code, False, tuple(rel.gather))


def forward_code(gather: Flags, narrow: Flags, halo: Flags, inexact: Flags, irregular: Flags) -> Any:
    """The code of a movement; whether some axis is gathered or narrowed, and the others of `Relation`."""
    general = irregular | (gather & (halo | inexact | narrow))
    return np.where(
        general, CODES[Kind.REDISTRIBUTE], np.where(gather, CODES[Kind.ALLGATHER], np.where(halo, CODES[Kind.HALO], 0))
    )


def partial_digits(needed: Layout) -> dict[str, Digit]:
    """Coordinates over which the gradients of a needed box are partial sums: parts of the work that need the same box."""
    out = {}
    by_name = {a.name: a for a in needed.axes}
    for name in PARTIAL:
        digit = needed.config.digits[name]
        if f"all {name}" in by_name or not _some(np.greater(digit.size, 1)):
            continue  # the layer's output has no such axis: ranks along it are replicas
        kept = cut(needed, by_name[name]).parts if name in by_name else 1
        out[name] = Digit(digit.stride, digit.size // kept)
    return out


def backward_pattern(rel: Relation, partials: Sequence[Digit]) -> Pattern:
    """The adjoint: from gradients of needed boxes (partial sums where parts need the same) to totals on owned boxes."""
    partial, gather, narrow = _any(partials), _any(rel.gather), _any(rel.narrow)
    same = _where(partial & gather & np.logical_not(rel.irregular | rel.halo | rel.inexact | narrow), same_digits, rel.gather, partials)
    code = backward_code(partial, same, gather, narrow, rel.halo, rel.inexact, rel.irregular)
    gathers = code == CODES[Kind.ALLGATHER]
    digits = tuple(Digit(d.stride, np.where(gathers, 1, d.size)) for d in partials)
    digits += tuple(Digit(d.stride, np.where(gathers, d.size, 1)) for d in rel.narrow)
    return Pattern(code, (code != 0) & ~gathers, digits)


def backward_code(partial: Flags, same: Flags, gather: Flags, narrow: Flags, halo: Flags, inexact: Flags, irregular: Flags) -> Any:
    """The code of the adjoint of a movement.

    Parameters
    ----------
    partial : bool
        Gradients are partial sums, over ranks that together gather a needed box where `same`.
    """
    # without partial sums
    alone = np.where(
        halo, np.where(gather | narrow, CODES[Kind.REDISTRIBUTE], CODES[Kind.HALO]),
        # complete gradients of pieces of a box that several ranks own alike: put together what the forward pass took apart
        np.where(narrow, np.where(gather | inexact, CODES[Kind.REDISTRIBUTE], CODES[Kind.ALLGATHER]), 0),
    )
    sums = np.where(
        halo | inexact | narrow, CODES[Kind.REDISTRIBUTE],
        np.where(np.logical_not(gather), CODES[Kind.ALLREDUCE], np.where(same, CODES[Kind.REDUCE_SCATTER], CODES[Kind.REDISTRIBUTE])),
    )
    return np.where(irregular, CODES[Kind.REDISTRIBUTE], np.where(partial, sums, alone))


def same_digits(a: Digit, b: Digit) -> Flags:
    """True where both name the same coordinates (those of size 1 do not count)."""
    alike = (a.stride[:, None] == b.stride) & (a.size[:, None] == b.size)
    return ((a.size == 1) | alike.any(axis=1)).all(axis=0) & ((b.size == 1) | alike.any(axis=0)).all(axis=0)
