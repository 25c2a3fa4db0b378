"""What movements between pairs of layouts amount to, all in one go: of plans, or of every two
configurations of a search's layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.network.common import (
    Side,
    box,
    copies,
    covers_once,
    far,
    moved,
    reach,
    standing_for_all,
    touched,
)
from hpcpar.cost.network.sides import Halo, sides_of
from hpcpar.network.receptive_field import Same, Window
from hpcpar.plan.axis import Axis, each_part
from hpcpar.plan.boxes import largest_part
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout
from hpcpar.plan.lines import Alike, Kind, Lines, Pair, pair_of

#: Cases whose redistributions are worked out at once: few enough for a processor's cache.
TOGETHER = 4096
#: Type of numbers of ranks, as far as many are kept.
RANKS = np.int32


class _Ends(NamedTuple):
    """Of each configuration of a layout: ranks, copies of a box, copies of its values, and the
    ranks within which these copies lie.
    """

    lives: Any
    spare: Any
    same: Any
    reach: Any


@dataclass(frozen=True)
class Amounts:
    """What the busiest ranks of a redistribution send and receive, in items and messages, among how
    many aligned ranks.
    """

    out: Any
    out_count: Any
    into: Any
    into_count: Any
    block: Any


class Measures:
    """What the axes of pairs of layouts have in common, worked out once for each two ways of
    cutting them.

    Parameters
    ----------
    ranks : int
        Of the job; where cases face each other one by one, there may be one number for each.
    """

    def __init__(self, lines: Lines, ranks: Any) -> None:
        self.lines, self.ranks = lines, ranks
        self._memory = np.empty(0)

    # -- redistributions ---------------------------------------------------------------------------
    @cached_property
    def _along(self) -> tuple[Any, Any]:
        """Of each two ways [..., what ranks that stand for all have in both, cover, counts], and of
        each side's ways the sizes.
        """
        rank, lines = standing_for_all(self.ranks, 1), self.lines
        if rank.shape[1] > 1:
            rank = np.tile(rank, len(lines) // rank.shape[1])
        sizes = tuple(np.empty((len(rank), len(side.parts))) for side in lines.sides)
        both = np.empty((len(lines), len(rank) + 3))
        for kind in lines.kinds:
            boxes = []
            for axis, side, places, items in zip(kind.own, lines.sides, kind.places, sizes,
                                                 strict=True):
                at = (rank[:, places] if rank.shape[1] > 1 else rank) - side.behind[places]
                found = box(axis, Digit(side.stride[places], side.parts[places]), at,
                            side.lives[places])
                np.subtract(found[1], found[0], out=items[:, places])
                own = side.of[kind.ways] - places.start
                boxes.append([each.astype(np.int32).take(own, axis=1) for each in found])
            (x0, x1), (y0, y1) = boxes
            np.maximum(np.minimum(x1, y1) - np.maximum(x0, y0), 0, out=both[kind.ways, :-3].T)
            widest = [items.max(axis=0)[side.of[kind.ways]]
                      for items, side in zip(sizes, lines.sides, strict=True)]
            counts = touched(kind.a, kind.b, (lines.x.size[kind.ways], lines.y.size[kind.ways]),
                             (widest[0], widest[1]))
            for i, values in enumerate((1.0 if covers_once(kind.relation) else self._cover(kind),
                                        *counts), -3):
                both[kind.ways, i] = values
        return both, sizes

    def _cover(self, kind: Kind) -> Any:
        """How often the second layout's parts cover an axis, for each two ways of a kind."""
        axis = kind.own[1]

        def work_out(some: Any, parts: Any) -> Any:
            start, stop, begins = each_part(axis.at(some), parts)
            return np.add.reduceat(stop - start, begins) / axis.extent[some]

        return self.lines.for_both(kind,
                                   kind.once(self.lines.sides[1].parts[kind.places[1]], work_out))

    def spans(self, group: Alike, index: Any) -> Any:
        """Of each case the aligned ranks among which a movement stays: up to the slowest coordinate
        in which the layouts differ.

        Parameters
        ----------
        index : [axes, *group.shape]
            Places of the two ways that the axes are cut in by the first of the pairs that are
            alike.
        """
        mine, theirs = _ends(group.have), _ends(group.want)
        (lives, wants), (one, other) = group.facing(mine.lives, theirs.lives), (group.have.config.first, group.want.config.first)
        out = reduce(np.maximum,
                     (*map(self._distance.take, index), *group.facing(mine.reach, theirs.reach)))
        everything = np.maximum(one + lives, other + wants) - min(one, other)
        return np.minimum(np.where((lives != wants) | (one != other), everything, out), self.ranks)

    @cached_property
    def _distance(self) -> Any:
        """Of each two ways; see `far`."""
        out = np.empty(len(self.lines), RANKS)
        for kind in self.lines.kinds:
            out[kind.ways] = far(kind.a, kind.b, *self.lines.cut(kind))
        return out

    def amounts(self, group: Alike, index: Any) -> Any:
        """The amounts of all cases of pairs of layouts that are alike; `index` as in `spans`.

        Returns
        -------
        ndarray
            [there or back, what `moved` gives, pairs, *group.shape].
        """
        both, shifts = self._along[0], self.lines.shifts(group.members)[:, :, None, None]
        one, other, (mine, theirs) = _ends(group.have), _ends(group.want), self._items(group, index, shifts)
        out = np.empty((2, 4, len(group.members), *group.shape))
        for members, rows in _parts(len(group.members), *group.shape):
            first, *places = (index[:, None, rows] + shifts[:, members])[: len(group.have.axes)]
            # what there is of a case lies together until all is found: looking it up costs more
            # than multiplying
            found, more = self._room(2 * both.shape[1] * first.size).reshape(2, *first.shape, both.shape[1])
            both.take(first, axis=0, out=found, mode="clip")
            for each in places:
                np.multiply(found, both.take(each, axis=0, out=more, mode="clip"), out=found)
            of_all, room = (memory.reshape(both.shape[1], *first.shape) for memory in (more, found))
            of_all[...] = np.moveaxis(found, -1, 0)
            kept, (cover, touching, touched_back) = of_all[:-3], of_all[-3:]
            spare, same = group.facing(one.spare, other.spare, rows), group.facing(one.same, other.same, rows)
            holder = Side(mine[:, members, rows], cover, touching, spare[0], same[0])
            wanter, own = Side(theirs[:, members], 1.0, touched_back, spare[1],
                               same[1]), kept.min(axis=0) > 0
            for way, ends in zip(out, ((holder, wanter), (wanter, holder)), strict=True):
                moved(*ends, kept, own, room[:-3], way[:, members, rows])
        return out

    def _room(self, count: int) -> Any:
        """Memory to work in, always the same: new memory costs more than what is done there."""
        if len(self._memory) < count:
            self._memory = np.empty(count)
        return self._memory[:count]

    def _items(self, group: Alike, index: Any, shifts: Any) -> tuple[Any, Any]:
        """Items of the boxes of both ends of some pairs of layouts: [ranks, pairs, configurations
        of one, 1], and of the other.
        """
        (x, y), (mine, theirs) = self.lines.sides, self._along[1]
        rows = x.of[(index if group.shape[0] == 1 else index[:, :, :1])[:, None] + shifts]
        return np.multiply.reduce(mine[:, rows], axis=1), np.multiply.reduce(theirs[:, y.of[index[:, None, :1] + shifts]], axis=1)

    # -- halos -------------------------------------------------------------------------------------
    @cached_property
    def _halos(self) -> tuple[Any, Any]:
        """Of each of the second layout's ways: the largest interval, and what `sides_of` says where
        a window may be cut.
        """
        parts = self.lines.sides[1].parts
        rest, found = np.ones(len(parts), np.int64), np.zeros((len(parts), 3, 5), np.int64)
        for kind in self.lines.kinds:
            here, axis = kind.places[1], kind.own[1]
            if isinstance(kind.relation, Window):
                rest[here], held = axis.extent, kind.held
                found[here] = kind.once(parts[here], lambda some, n, a=held, b=axis: sides_of(a.at(some), b.at(some), n))  # type: ignore[misc]
            elif isinstance(kind.relation, Same):
                rest[here] = largest_part(axis.extent, parts[here], axis.granule)
            else:
                rest[here] = kind.once(parts[here], lambda some, n, axis=axis: _widest(axis.at(some), n))  # type: ignore[misc]
        return rest, found

    def halo(self, group: Alike, places: Any) -> Halo:
        """What the halos of some cases move, of every pair that is alike: the cases of one after
        those of the other.

        Parameters
        ----------
        places : [axes, cases]
            Of the two ways that the axes are cut in by the first pair.
        """
        rest, found = self._halos
        whole, items, digits, y = list[Any](), 1, list[Digit](), self.lines.y
        shifted = (places[:, None] + self.lines.shifts(group.members)[:, :, None]).reshape(len(places), -1)
        for axis, ways in zip(group.want.axes, shifted, strict=False):
            theirs = self.lines.sides[1].of[ways]
            if isinstance(axis.relation, Window) and (y.size[ways] > 1).any():
                whole.append(found[theirs])
                digits.append(Digit(y.stride[ways], y.size[ways]))
            else:
                items = items * rest[theirs]
        return Halo(items, whole, digits)


def _widest(axis: Axis, parts: Any) -> Any:
    start, stop, begins = each_part(axis, parts)
    return np.maximum.reduceat(stop - start, begins)


def _parts(members: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Parts of pairs of layouts that are alike, of `TOGETHER` cases at most: several whole ones, or
    some rows of one.
    """
    step = TOGETHER // (rows * columns)
    if step:
        for i in range(0, members, step):
            yield slice(i, min(i + step, members)), slice(0, rows)
        return
    step = max(1, TOGETHER // columns)
    for i in range(members):
        for row in range(0, rows, step):
            yield slice(i, i + 1), slice(row, min(row + step, rows))


def _ends(layout: Layout) -> _Ends:
    return layout.of_cutting("ends", _work_out_ends)


def _work_out_ends(layout: Layout) -> _Ends:
    out = np.empty((4, np.size(layout.config.ranks)), RANKS)
    out[0], (out[1], out[2]), out[3] = layout.config.ranks, copies(layout), reduce(np.maximum, map(reach, layout.spare), 1)
    return _Ends(*out)


# -- of two layouts, case by case ------------------------------------------------------------------
def amounts(holder: Layout, wanter: Layout, ranks: Any) -> Amounts:
    """The amounts of a movement between two layouts; with partial sums, every holder of a part of
    the sum sends its own.

    Those of the movement back are found along with them.
    """
    number = id(ranks) if isinstance(ranks, np.ndarray) else ranks
    for way, (own, need) in enumerate(((holder, wanter), (wanter, holder))):
        if ("amounts", id(need), number) in own.memo:
            return own.memo["amounts", id(need), number][0][way]
    way = int(("pair", id(holder)) in wanter.memo
              or not all(isinstance(axis.relation, Same) for axis in holder.axes))
    own, need = (wanter, holder) if way else (holder, wanter)
    pair, measures = _pair(own, need, ranks)
    span, sums = pair.shaped(measures.spans(pair.group, pair.index)), measures.amounts(pair.group, pair.index)
    there, back = (Amounts(*map(pair.shaped, each), span) for each in sums)  # type: ignore[call-arg]
    # what the keys name is kept, so that nothing else gets its id
    own.memo["amounts", id(need), number] = ((there, back), need, ranks)
    return (there, back)[way]


def halo_of(own: Layout, need: Layout) -> Halo:
    """The halo between what ranks own and what they need; both directions share it."""
    key = ("halo", id(need))
    if key not in own.memo:
        pair, measures = _pair(own, need, 1)
        halo = measures.halo(pair.group, pair.index[:, 0])
        digits = [Digit(pair.shaped(d.stride), pair.shaped(d.size)) for d in halo.digits]
        own.memo[key] = (Halo(pair.shaped(halo.rest),
                              [pair.shaped(sides, 3, 5) for sides in halo.found], digits), need)
    return own.memo[key][0]


def _pair(own: Layout, need: Layout, ranks: Any) -> tuple[Pair, Measures]:
    """Two layouts, and what is found out of them together with those that they are laid out with.
    """
    pair = pair_of(own, need, ranks)
    memo, number = pair.block.lines.memo, id(ranks) if isinstance(ranks, np.ndarray) else ranks
    if number not in memo:
        memo[number] = (Measures(pair.block.lines, ranks), ranks)
    return pair, memo[number][0]
