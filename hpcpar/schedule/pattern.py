"""Recognising the pattern of a movement from what ranks hold and want: the decision behind every communication step.

Everything is decided per axis from degrees and strides, never by walking ranks, and for all cases of a family of plans at once: degrees,
strides and decisions are numbers or arrays with an entry for each case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.relation import Columns, Full, Granule, Groups, Offset, Same, Window
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


def _union(fine: Cut, coarse: Cut) -> Flags:
    """True where each part of `coarse` is a union of consecutive parts of `fine` held by neighbouring coordinates."""
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
    return Facing(want.digit, gather, narrow, halo, inexact, irregular | (exact & ~gathers & ~narrows))


def mixed_digits(groups: Digit, others: Digit) -> Flags:
    """True where a coordinate of a group and one that a box depends on share factors of the rank: the group's boxes differ."""
    stride, size = groups.stride[:, None], groups.size[:, None]
    overlap = (size > 1) & (others.size > 1) & (stride < others.stride * others.size) & (others.stride < stride * size)
    return overlap.any(axis=(0, 1))


def forward_code(gather: Flags, narrow: Flags, halo: Flags, inexact: Flags, irregular: Flags) -> Any:
    """The code of a movement; whether some axis is gathered or narrowed, and the others of `Facing`."""
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
