"""Axes of many pairs of layouts laid end to end: for each axis every two ways of cutting it once, those of one kind together.

Layers have many configurations, that cut one axis in few ways: what follows from one axis is worked out for these, of all pairs of layouts
in one go, and found again for each two configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.relation import Relation
from hpcpar.plan.axis import Axis, column
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout, Ways

#: An axis that some tensors have not: one part on every rank.
NO_AXIS = Axis("", 1, 1)
NO_WAYS = Ways(np.array([[1], [1], [1 << 40]]), np.zeros(1, np.intp))

#: What ranks own of a tensor, and what they need of it.
Two = tuple[Layout, Layout]


class Line(NamedTuple):
    """An axis of two layouts, and how each cuts it."""

    a: Axis
    b: Axis
    x: Ways
    y: Ways


@dataclass(frozen=True)
class Kind:
    """Lines whose second axes are related alike.

    Attributes
    ----------
    a, b : Axis
        With an entry for each two ways of each line.
    lines : list of Line
    ways : slice
        Their ways among those of all lines.
    own : tuple of Axis
        `a` with an entry for each of the first layout's ways alone, `b` for each of the second's.
    places : tuple of slice
        These among those of all lines.
    held : Axis
        `a` with an entry for each of the second layout's ways.
    """

    a: Axis
    b: Axis
    lines: list[Line]
    ways: slice
    own: tuple[Axis, Axis]
    places: tuple[slice, slice]
    held: Axis

    @property
    def relation(self) -> Relation:
        return self.b.relation


class Side(NamedTuple):
    """The ways in which one of two layouts cuts its axes, of all lines; and which of them each two ways have."""

    stride: Any
    parts: Any
    lives: Any
    of: Any


class Lines:
    """The axes of pairs of layouts.

    Attributes
    ----------
    x, y : Digit
        The coordinates that cut the axes, an entry for each two ways.
    sides : tuple of (holder's, wanter's) Side
    kinds : list of Kind
    """

    def __init__(self, pairs: Sequence[Two]) -> None:
        self.pairs = pairs
        self.width = max(len(have.axes) for have, _ in pairs)
        found: dict[Any, tuple[int, Line]] = {}
        none = Line(NO_AXIS, NO_AXIS, NO_WAYS, NO_WAYS)
        self._numbers = [[_number(found, line) for line in _axes(pair)] for pair in pairs]
        last = _number(found, none)
        for numbers in self._numbers:
            numbers += [last] * (self.width - len(numbers))
        self._lines = [line for _, line in found.values()]
        kinds: dict[type, list[int]] = {}
        for i, line in enumerate(self._lines):
            kinds.setdefault(type(line.b.relation), []).append(i)
        order = [i for some in kinds.values() for i in some]
        lines = [self._lines[i] for i in order]
        counts = np.array([(len(line.x), len(line.y)) for line in lines]).T
        whose = np.repeat(np.arange(len(lines)), counts.prod(axis=0))
        ends, *own_ends = (np.concatenate(([0], np.cumsum(n))) for n in (counts.prod(axis=0), *counts))
        place = np.divmod(np.arange(ends[-1]) - ends[whose], counts[1][whose])
        own = [np.concatenate([ways.columns for ways in some], axis=1) for some in ([each.x for each in lines], [each.y for each in lines])]
        self.sides = tuple(Side(*columns, e[whose] + at) for columns, e, at in zip(own, own_ends, place, strict=True))  # type: ignore[call-arg]
        self.x, self.y = (Digit(side.stride[side.of], side.parts[side.of]) for side in self.sides)
        self._begins = np.empty(len(lines), np.intp)
        self._begins[order] = ends[:-1]
        one = [np.repeat(np.arange(len(lines)), n) for n in counts]
        self.kinds = []
        begin = 0
        for some in kinds.values():
            end = begin + len(some)
            ways, *mine = (slice(int(e[begin]), int(e[end])) for e in (ends, *own_ends))
            a, b = (column([getattr(each, side) for each in lines[begin:end]]) for side in "ab")
            here = whose[ways] - begin
            x, y = (one[side][mine[side]] - begin for side in (0, 1))
            self.kinds.append(Kind(a.at(here), b.at(here), lines[begin:end], ways, (a.at(x), b.at(y)), (mine[0], mine[1]), a.at(y)))
            begin = end

    def __len__(self) -> int:
        return len(self.sides[0].of)

    def cut(self, kind: Kind) -> tuple[Digit, Digit]:
        """The coordinates that cut the axes of a kind."""
        return Digit(self.x.stride[kind.ways], self.x.size[kind.ways]), Digit(self.y.stride[kind.ways], self.y.size[kind.ways])

    def for_both(self, kind: Kind, values: Any) -> Any:
        """What was worked out for the second layout's ways of a kind, for each two ways."""
        return values[self.sides[1].of[kind.ways] - kind.places[1].start]

    def alike(self, rows: Any, also: Sequence[Any]) -> list[list[int]]:
        """The pairs of layouts under the same configurations of whose axes `rows` says the same for each two ways, and `also` of both."""
        known = dict[Any, int]()
        names = []
        for line, begin in zip(self._lines, self._begins, strict=True):
            said = rows[begin: begin + len(line.x) * len(line.y)].tobytes()
            names.append(known.setdefault((said, id(line.x.where), id(line.y.where)), len(known)))
        found: dict[Any, list[int]] = {}
        for i, (numbers, (have, want)) in enumerate(zip(self._numbers, self.pairs, strict=True)):
            key = (tuple(names[n] for n in numbers), have.cutting, want.cutting, have.config.key, want.config.key, also[i])
            found.setdefault(key, []).append(i)
        return list(found.values())

    def places(self, i: int, out: Any) -> None:
        """For each axis of a pair of layouts the place of the two ways, [axes, configurations of one, of the other]."""
        for number, here in zip(self._numbers[i], out, strict=True):
            line = self._lines[number]
            np.add((self._begins[number] + line.x.where * len(line.y))[:, None], line.y.where, out=here)

    def shifts(self, members: Sequence[int]) -> Any:
        """[axes, pairs of layouts]: how far the places of pairs that are alike lie behind those of the first of them."""
        begins = self._begins[np.array([self._numbers[i] for i in members]).T]
        return begins - begins[:, :1]


class Alike(NamedTuple):
    """Pairs of layouts under the same configurations that face each other alike.

    Attributes
    ----------
    members : list of int
        Their places among all pairs.
    have, want : Layout
        Of the first.
    shape : tuple of int
        (configurations of one, of the other).
    cases : slice
        Of one of them, among those of the block.
    """

    members: list[int]
    have: Layout
    want: Layout
    shape: tuple[int, int]
    cases: slice

    @property
    def size(self) -> int:
        """Cases of each."""
        return self.shape[0] * self.shape[1]


class Block:
    """Pairs of layouts, every configuration of one with every one of the other, laid end to end; of those that are alike only the first.

    Attributes
    ----------
    groups : list of Alike
    index : array of int
        [axes, cases]: places of the two ways that the axes of a case are cut in.
    """

    def __init__(self, lines: Lines, alike: Sequence[list[int]]) -> None:
        self.lines, self.groups = lines, list[Alike]()
        for members in alike:
            have, want = lines.pairs[members[0]]
            shape, begin = (int(np.size(have.config.n)), int(np.size(want.config.n))), len(self)
            self.groups.append(Alike(members, have, want, shape, slice(begin, begin + shape[0] * shape[1])))
        self.index = np.empty((lines.width, len(self)), np.intp)
        for group, index in self.of(self.index):
            lines.places(group.members[0], index)

    def __len__(self) -> int:
        return self.groups[-1].cases.stop if self.groups else 0

    def of(self, values: Any) -> Iterator[tuple[Alike, Any]]:
        """Those that are alike, and what is theirs of an array with an entry for each case: [..., configurations of one, of the other]."""
        for group in self.groups:
            yield group, values[..., group.cases].reshape(*values.shape[:-1], *group.shape)


def _axes(pair: Two) -> list[Line]:
    have, want = pair
    return [Line(a, b, have.ways(a), want.ways(b)) for a, b in zip(have.axes, want.axes, strict=True)]


def _number(found: dict[Any, tuple[int, Line]], line: Line) -> int:
    """The place of a line among the different ones."""
    return found.setdefault((line.a, line.b, id(line.x), id(line.y)), (len(found), line))[0]
