"""Recognising the pattern of a movement from what ranks hold and want: the decision behind every
communication step.

Everything is decided per axis from degrees and strides, never by walking ranks, and for all cases
of a family of plans at once: degrees, strides and decisions are numbers or arrays with an entry for
each case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.receptive_field import Columns, Full, Granule, Groups, Offset, Same, Window
from hpcpar.plan.config import Config, Digit, Ints
from hpcpar.plan.layout import Axis, Layout
from hpcpar.schedule.steps import CODES, Group, Kind

#: Axes of a configuration along which gradients may be partial sums.
PARTIAL = ("n", "c", "d", "h", "w", "k")
#: A decision, or one for each case.
Flags = Any
ONE = Digit(1, 1)


@dataclass(frozen=True)
class Cut:
    """How a layout cuts one axis: part ``digit.of(rank)`` of `digit.size` blocks, exactly or
    widened by a halo.
    """

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
        return Cut(Digit(stride, np.where(fine & ~coarse, relation.groups, size)), 1, regular,
                   regular)
    assert isinstance(relation, Window)
    return Cut(digit, 1, whole | relation.pointwise)


KINDS: tuple[Kind | None, ...] = (None, *CODES)
#: Of each code, whether it is a collective's, and whether that sums.
COLLECTIVE = np.array([kind not in (None, Kind.HALO, Kind.REDISTRIBUTE) for kind in KINDS])
SUMS = np.array([kind in (Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE) for kind in KINDS])


#: Of no collectives.
NO_GROUP = Digit(np.ones((0, 0), np.int64), np.ones((0, 0), np.int64))


@dataclass(eq=False)
class Pattern:
    """A movement: its kind, and the coordinates of a collective's group.

    Attributes
    ----------
    code : int
        Of `CODES`, 0 where nothing moves.
    adds : bool
        What arrives from rank to rank is added.
    at : array of int
        The cases that are collectives.
    among : Digit
        [coordinates, collectives]: those of their groups, of size 1 where they do not belong to
        one.
    """

    code: Any
    adds: bool = False
    at: Any = field(default_factory=lambda: np.zeros(0, np.intp))
    among: Digit = NO_GROUP

    def of(self, cases: slice, shape: tuple[int, ...] = (-1,)) -> Pattern:
        """Some cases in a row; of shape () a single one."""
        some = slice(*np.searchsorted(self.at, (cases.start, cases.stop)))
        among = Digit(self.among.stride[:, some], self.among.size[:, some])
        return Pattern(self.code[cases].reshape(shape)[()], self.adds, self.at[some] - cases.start,
                       among)

    @cached_property
    def digits(self) -> tuple[Digit, ...]:
        """The coordinates of the groups, for every case."""
        there = [i for i, sizes in enumerate(self.among.size) if (sizes > 1).any()]
        if not np.ndim(self.code):
            return tuple(Digit(int(self.among.stride[i, 0]), int(self.among.size[i, 0]))
                         for i in there)
        whole = np.ones((len(there), 2, np.size(self.code)), np.int64)
        whole[:, 0, self.at], whole[:, 1,
                                    self.at] = self.among.stride[there], self.among.size[there]
        return tuple(Digit(*(values.reshape(np.shape(self.code)) for values in each))
                     for each in whole)

    @property
    def reduce(self) -> Flags:
        """Whether it sums."""
        return SUMS[self.code] | (self.adds & (self.code != 0) & ~COLLECTIVE[self.code])

    @property
    def kind(self) -> Kind | None:
        """The kind of a single case."""
        return KINDS[int(self.code)]

    @property
    def group(self) -> Group | None:
        """The group of a single case; None for point-to-point patterns and where nothing moves."""
        return None if self.kind in (None, Kind.HALO, Kind.REDISTRIBUTE) else Group(self.digits)


NOTHING = Pattern(np.int8(0))


def collective(kind: Kind, digits: tuple[Digit, ...]) -> Pattern:
    """A collective over the ranks that differ in `digits`; nothing where these are a single rank.
    """
    shape = np.broadcast_shapes(*(np.shape(value) for d in digits for value in (d.stride, d.size)))
    columns = np.empty((2, len(digits), *shape), np.int64)
    for i, d in enumerate(digits):
        columns[0, i], columns[1, i] = d.stride, d.size
    some = (columns[1] > 1).any(axis=0)
    at = some.ravel().nonzero()[0]
    return Pattern(some * np.int8(CODES[kind]), False, at,
                   Digit(*columns.reshape(2, len(digits), -1)[:, :, at]))


def collective_along(kind: Kind, config: Config, names: tuple[str, ...]) -> Pattern:
    """A collective over the ranks that differ along some axes of a configuration; the same object
    for layers that share it.
    """

    def work_out() -> Pattern:
        return collective(kind, tuple(config.digits[name] for name in names))

    return config.remembered((kind, names), work_out) if config.shared else work_out()


def _union(fine: Cut, coarse: Cut) -> Flags:
    """True where each part of `coarse` is a union of consecutive parts of `fine` held by
    neighbouring coordinates.
    """
    ratio, rest = np.divmod(fine.parts, coarse.parts)
    nested = np.equal(fine.granule, coarse.granule) & (rest == 0) & (coarse.digit.stride == fine.digit.stride * ratio)
    return np.equal(coarse.parts, 1) | nested


def _some(flags: Flags) -> bool:
    return bool(flags.any() if isinstance(flags, np.ndarray) else flags)


class Facing(NamedTuple):
    """How the needed intervals of an axis relate to the owned ones.

    Attributes
    ----------
    depends : Digit
        The parts of what is needed.
    gather : Digit
        Neighbours whose owned boxes together make up a needed box (size 1: none).
    narrow : Digit
        Ranks that each need another piece of the same owned box (size 1: none).
    halo : bool
        Needed boxes reach into other ranks' owned boxes by windows.
    inexact : bool
        Some needed box is not a union of parts, though every rank may hold what it needs.
    irregular : bool
        None of the simple relations holds.
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
    return Facing(want.digit, gather, narrow, halo, inexact,
                  irregular | (exact & ~gathers & ~narrows))


def mixed_digits(groups: Digit, others: Digit) -> Flags:
    """True where a coordinate of a group and one that a box depends on share factors of the rank:
    the group's boxes differ.
    """
    stride, size = groups.stride[:, None], groups.size[:, None]
    overlap = (size > 1) & (others.size > 1) & (stride < others.stride
                                                * others.size) & (others.stride < stride * size)
    return overlap.any(axis=(0, 1))


def forward_code(gather: Flags, narrow: Flags, halo: Flags, inexact: Flags,
                 irregular: Flags) -> Any:
    """The code of a movement; whether some axis is gathered or narrowed, and the others of
    `Facing`.
    """
    general = irregular | (gather & (halo | inexact | narrow))
    return np.where(
        general, CODES[Kind.REDISTRIBUTE], np.where(gather, CODES[Kind.ALLGATHER], np.where(halo, CODES[Kind.HALO], 0))
    )


def partial_digits(needed: Layout) -> dict[str, Digit]:
    """Coordinates over which the gradients of a needed box are partial sums: parts of the work that
    need the same box.
    """
    out = {}
    by_name = {a.name: a for a in needed.axes}
    for name in PARTIAL:
        digit = needed.config.digits[name]
        if f"all {name}" in by_name or not _some(np.greater(digit.size, 1)):
            continue  # the layer's output has no such axis: ranks along it are replicas
        kept = cut(needed, by_name[name]).parts if name in by_name else 1
        out[name] = Digit(digit.stride, digit.size // kept)
    return out


def backward_code(partial: Flags, same: Flags, gather: Flags, narrow: Flags, halo: Flags,
                  inexact: Flags, irregular: Flags) -> Any:
    """The code of the adjoint of a movement.

    Parameters
    ----------
    partial : bool
        Gradients are partial sums, over ranks that together gather a needed box where `same`.
    """
    # without partial sums
    alone = np.where(
        halo, np.where(gather | narrow, CODES[Kind.REDISTRIBUTE], CODES[Kind.HALO]),
        # complete gradients of pieces of a box that several ranks own alike: put together what the
        # forward pass took apart
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
    return ((a.size == 1) | alike.any(axis=1)).all(axis=0) & ((b.size == 1)
                                                              | alike.any(axis=0)).all(axis=0)
