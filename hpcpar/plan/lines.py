"""Axes of pairs of layouts laid end to end: those of one kind together, for all that is found out
about axes in one go.

The cases of two layouts face each other one by one. Or each configuration of one faces all of the
other: layers have many configurations that cut one axis in few ways, so that what follows from one
axis is worked out for every two ways of cutting it once, and found again for each two
configurations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.receptive_field import Relation
from hpcpar.plan.axis import Axis, column
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout, Ways

#: An axis that some tensors have not: one part on every rank.
NO_AXIS = Axis("", 1, 1)
NO_WAYS = Ways(np.array([[1], [1], [1 << 40]]), np.zeros(1, np.intp))

#: Up to so many ways are all worked out, whatever they have in common.
FEW = 500
#: Cases that are compared at once: enough to make calls cheap, few enough for a processor's cache.
TOGETHER = 8192

#: What ranks own of a tensor, and what they need of it.
Two = tuple[Layout, Layout]


class Line(NamedTuple):
    """An axis of two layouts, how each cuts it, and how far the first rank of each lies behind the
    first of both.
    """

    a: Axis
    b: Axis
    x: Ways
    y: Ways
    behind: tuple[int, int]


@dataclass(frozen=True)
class Kind:
    """Lines whose second axes are related alike.

    Attributes
    ----------
    a, b : Axis
        With an entry for each two ways of each line.
    ways : slice
        Their ways among those of all lines.
    own : tuple of Axis
        `a` with an entry for each of the first layout's ways alone, `b` for each of the second's.
    places : tuple of slice
        These among those of all lines.
    held : Axis
        `a` with an entry for each of the second layout's ways.
    whose : array of int
        The line of each of these.
    """

    a: Axis
    b: Axis
    ways: slice
    own: tuple[Axis, Axis]
    places: tuple[slice, slice]
    held: Axis
    whose: Any

    @property
    def relation(self) -> Relation:
        return self.b.relation

    def once(self, parts: Any, work_out: Callable[[Any, Any], Any]) -> Any:
        """Something for each of the second layout's ways; of many worked out once for each line and
        number of parts.

        Parameters
        ----------
        work_out : callable
            From the places of some ways among those of the kind, and their numbers of parts.
        """
        if len(parts) <= FEW:
            return work_out(slice(None), parts)
        names = self.whose * (int(parts.max()) + 1) + parts
        places = np.full(int(names.max()) + 1, -1)
        places[names] = np.arange(len(names))
        known = places >= 0
        some = places[known]
        return work_out(some, parts[some])[(np.cumsum(known) - 1)[names]]


class Side(NamedTuple):
    """The ways in which one of two layouts cuts its axes, of all lines, see `Line`; and which of
    them each two ways have.
    """

    stride: Any
    parts: Any
    lives: Any
    behind: Any
    of: Any


class Lines:
    """The axes of pairs of layouts.

    Parameters
    ----------
    cases : int, optional
        Every layout has so many, that face each other one by one; else every configuration of one
        faces every one of the other.

    Attributes
    ----------
    x, y : Digit
        The coordinates that cut the axes, an entry for each two ways.
    sides : tuple of (holder's, wanter's) Side
    kinds : list of Kind
    memo : dict
        What others worked out about them.
    """

    def __init__(self, pairs: Sequence[Two], cases: int | None = None) -> None:
        self.pairs, self.cases, self.memo = pairs, cases, dict[Any, Any]()
        self.width = max(len(have.axes) for have, _ in pairs)
        found: dict[Any, tuple[int, Line]] = {}
        self._numbers = [[_number(found, line) for line in _axes(pair, cases)] for pair in pairs]
        ways = NO_WAYS if cases is None else Ways(np.repeat(NO_WAYS.columns, cases, axis=1),
                                                  np.arange(cases))
        last = _number(found, Line(NO_AXIS, NO_AXIS, ways, ways, (0, 0)))
        for numbers in self._numbers:
            numbers += [last] * (self.width - len(numbers))
        self._lines = [line for _, line in found.values()]
        kinds: dict[type, list[int]] = {}
        for i, line in enumerate(self._lines):
            kinds.setdefault(type(line.b.relation), []).append(i)
        order = [i for some in kinds.values() for i in some]
        lines = [self._lines[i] for i in order]
        own_counts = np.array([(len(line.x), len(line.y)) for line in lines]).T
        counts = own_counts.prod(axis=0) if cases is None else own_counts[0]
        whose = np.repeat(np.arange(len(lines)), counts)
        ends, *own_ends = (np.concatenate(([0], np.cumsum(n))) for n in (counts, *own_counts))
        place = np.arange(ends[-1]) - ends[whose]
        places = np.divmod(place, own_counts[1][whose]) if cases is None else (place, place)
        one = [np.repeat(np.arange(len(lines)), n) for n in own_counts]
        sides = []
        for i, (end, at) in enumerate(zip(own_ends, places, strict=True)):
            columns = np.concatenate([(line.x, line.y)[i].columns for line in lines], axis=1)
            behind = np.array([line.behind[i] for line in lines])[one[i]]
            sides.append(Side(*columns, behind, end[whose] + at))  # type: ignore[call-arg]
        self.sides = tuple(sides)
        self.x, self.y = (Digit(side.stride[side.of], side.parts[side.of]) for side in self.sides)
        self._begins = np.empty(len(lines), np.intp)
        self._begins[order] = ends[:-1]
        self.kinds = []
        stop = 0
        for some in kinds.values():
            begin, stop = stop, stop + len(some)
            here, *mine = (slice(int(e[begin]), int(e[stop])) for e in (ends, *own_ends))
            self.kinds.append(_kind(lines[begin:stop], whose[here] - begin,
                                    [one[i][mine[i]] - begin for i in (0, 1)], here, mine, cases))

    def __len__(self) -> int:
        return len(self.sides[0].of)

    def cut(self, kind: Kind) -> tuple[Digit, Digit]:
        """The coordinates that cut the axes of a kind."""
        return Digit(self.x.stride[kind.ways],
                     self.x.size[kind.ways]), Digit(self.y.stride[kind.ways],
                                                    self.y.size[kind.ways])

    def for_both(self, kind: Kind, values: Any) -> Any:
        """What was worked out for the second layout's ways of a kind, for each two ways."""
        return values[self.sides[1].of[kind.ways] - kind.places[1].start]

    def alike(self, rows: Any, also: Sequence[Any]) -> list[list[int]]:
        """The pairs of layouts under the same configurations of whose axes `rows` says the same for
        each two ways, and `also` of both.
        """
        known = dict[Any, int]()
        names = []
        for line, begin in zip(self._lines, self._begins, strict=True):
            said = rows[begin: begin + len(line.x) * len(line.y)].tobytes()
            names.append(known.setdefault((said, id(line.x.where), id(line.y.where)), len(known)))
        found: dict[Any, list[int]] = {}
        for i, (numbers, (have, want)) in enumerate(zip(self._numbers, self.pairs, strict=True)):
            key = (tuple(names[n] for n in numbers), have.cutting, want.cutting, have.config.key,
                   want.config.key, also[i])
            found.setdefault(key, []).append(i)
        return list(found.values())

    def places(self, i: int, out: Any) -> None:
        """For each axis of a pair of layouts the place of the two ways, [axes, configurations of
        one, of the other].
        """
        for number, here in zip(self._numbers[i], out, strict=True):
            line = self._lines[number]
            rows = 0 if self.cases is not None else (line.x.where * len(line.y))[:, None]
            np.add(self._begins[number] + rows, line.y.where, out=here)

    def shifts(self, members: Sequence[int]) -> Any:
        """[axes, pairs of layouts]: how far the places of pairs that are alike lie behind those of
        the first of them.
        """
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
        (Configurations of one, of the other); or (1, cases) that face each other one by one.
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

    def facing(self, mine: Any, theirs: Any, rows: slice = slice(None)) -> tuple[Any, Any]:
        """Numbers of both layouts, one for each of its cases, to be broadcast to the group's shape,
        or to some rows of it.
        """
        return (mine if self.shape[0] == 1 else mine[rows, None]), theirs


class Block:
    """Pairs of layouts, every configuration of one with every one of the other, laid end to end; of
    those that are alike only the first.

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
            shape = (1, lines.cases) if lines.cases is not None else (int(np.size(have.config.n)), int(np.size(want.config.n)))
            begin = len(self)
            self.groups.append(Alike(members, have, want, shape,
                                     slice(begin, begin + shape[0] * shape[1])))
        self.index = np.empty((lines.width, len(self)), np.intp)
        for group, index in self.of(self.index):
            lines.places(group.members[0], index)

    def __len__(self) -> int:
        return self.groups[-1].cases.stop if self.groups else 0

    def of(self, values: Any) -> Iterator[tuple[Alike, Any]]:
        """Those that are alike, and what is theirs of an array with an entry for each case: [...,
        configurations of one, of the other].
        """
        for group in self.groups:
            yield group, values[..., group.cases].reshape(*values.shape[:-1], *group.shape)


class Pair(NamedTuple):
    """Two layouts whose cases face each other one by one, among others that are laid out together.

    Attributes
    ----------
    shape : tuple of int
        Of the cases, () of a single one.
    group, index
        The pair in the block, see `Block.of`.
    """

    shape: tuple[int, ...]
    block: Block
    group: Alike
    index: Any

    def shaped(self, values: Any, *more: int) -> Any:
        """An entry for each case, or that of a single one; `more` axes follow."""
        return values.reshape((*self.shape, *more))[()]


def lay_out(pairs: Sequence[Two], ranks: Any = 1) -> list[Pair]:
    """Pairs of layouts whose cases face each other one by one; each remembers where it lies, to be
    found by `pair_of`.

    Parameters
    ----------
    ranks : int
        Where there is one number for each case.
    """
    shape = shape_of(pairs, ranks)
    block = Block(Lines(pairs, math.prod(shape)), [[i] for i in range(len(pairs))])
    out = [Pair(shape, block, *laid) for laid in block.of(block.index)]
    for (own, need), pair in zip(pairs, out, strict=True):
        own.memo["pair", id(need)] = (pair, need)  # kept, so that no other layout gets its id
    return out


def pair_of(own: Layout, need: Layout, ranks: Any) -> Pair:
    """Two layouts of a single case as they were laid out with others; of many cases alone, which is
    enough for an array.
    """
    known = own.memo.get(("pair", id(need)))
    return known[0] if known is not None and known[0].shape == np.shape(ranks) == () else lay_out(
        [(own, need)], ranks)[0]


def shape_of(pairs: Sequence[Two], ranks: Any = 1) -> tuple[int, ...]:
    """The shape of cases of some pairs of layouts, and of numbers of ranks, that face each other
    one by one: () of a single case.
    """
    shapes = {np.shape(layout.config.ranks) for pair in pairs for layout in pair}
    shapes |= {np.shape(axis.extent) for pair in pairs for layout in pair for axis in layout.axes
               if isinstance(axis.extent, np.ndarray)}
    return np.broadcast_shapes(np.shape(ranks), *shapes)


def _axes(pair: Two, cases: int | None) -> list[Line]:
    have, want = pair
    first = have.config.first, want.config.first
    behind = (0, 0) if first[0] == first[1] else (first[0] - min(first), first[1] - min(first))
    return [Line(a, b, have.ways(a, cases), want.ways(b, cases), behind)
            for a, b in zip(have.axes, want.axes, strict=True)]


def _number(found: dict[Any, tuple[int, Line]], line: Line) -> int:
    """The place of a line among the different ones."""
    axes = tuple(id(axis) if isinstance(axis.extent, np.ndarray) else axis for axis in line[:2])
    return found.setdefault((*axes, id(line.x), id(line.y), line.behind), (len(found), line))[0]


def _kind(lines: list[Line], whose: Any, own: Sequence[Any], ways: slice, places: Sequence[slice],
          cases: int | None) -> Kind:
    """Lines of a kind, from the line of each two ways, and of each way of either side."""
    mine, axes = (places[0], places[1]), ([line.a for line in lines], [line.b for line in lines])
    if cases is not None:
        a, b = (_laid(some, whose, cases) for some in axes)
        return Kind(a, b, ways, (a, b), mine, a, whose)
    a, b = map(column, axes)
    x, y = own
    return Kind(a.at(whose), b.at(whose), ways, (a.at(x), b.at(y)), mine, a.at(y), y)


def _laid(axes: Sequence[Axis], whose: Any, cases: int) -> Axis:
    """Axes laid end to end, whose extents may differ from case to case."""
    if not any(isinstance(axis.extent, np.ndarray) for axis in axes):
        return column(axes).at(whose)
    plain = column([replace(axis, extent=0, out_extent=0) for axis in axes]).at(whose)
    extent, out_extent = (np.concatenate([np.broadcast_to(value, cases) for value in values])
                          for values in ([axis.extent for axis in axes], [axis.out_extent for axis in axes]))
    return replace(plain, extent=extent, out_extent=out_extent)
