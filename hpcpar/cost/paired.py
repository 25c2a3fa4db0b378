"""What movements between many pairs of layouts amount to, every configuration of one with every one of the other, in one go."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.common import Common, Side, box, covers_once, far, reach, standing_for_all, touched
from hpcpar.cost.direct import Shares, copies, shares, there_and_back
from hpcpar.cost.halos import Halo, sides_of
from hpcpar.network.relation import Window
from hpcpar.plan.axis import each_part
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout
from hpcpar.plan.lines import Alike, Block, Kind, Lines

#: Cases whose redistributions are worked out at once: few enough for a processor's cache.
TOGETHER = 2048


#: Type of numbers of ranks, as far as many are kept.
RANKS = np.int32


class _Piece(NamedTuple):
    """Some of the cases of pairs of layouts that are alike: of some of them, under some of the holder's configurations."""

    group: Alike
    members: slice
    rows: slice

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.members.stop - self.members.start, self.rows.stop - self.rows.start, self.group.shape[1]

    @property
    def size(self) -> int:
        members, rows, columns = self.shape
        return members * rows * columns


class _Room(NamedTuple):
    """Memory to work in, each [lines, cases]: places of two ways along axes, shares, products over axes, what is multiplied with them,
    items of holders and of wanters, and something else.
    """

    index: Any
    share: Any
    rows: Any
    more: Any
    mine: Any
    theirs: Any
    work: Any


class _Ends(NamedTuple):
    """Of each configuration of a layout: ranks, copies of a box, copies of its values, and the ranks within which these copies lie."""

    lives: Any
    spare: Any
    same: Any
    reach: Any


class Measures:
    """What the axes of pairs of layouts have in common, worked out once for each two ways of cutting them.

    Parameters
    ----------
    ranks : int
        Of the job.
    """

    def __init__(self, lines: Lines, ranks: int) -> None:
        self.lines, self.ranks = lines, ranks
        self._memory: dict[str, Any] = {}

    # -- redistributions -------------------------------------------------------------------------------------------
    @cached_property
    def _along(self) -> tuple[Any, Any]:
        """Of each two ways [overlap on ranks that stand for all, cover, counts], and of each side's ways the sizes (see `Along`)."""
        rank, lines = standing_for_all(self.ranks, 1).ravel(), self.lines
        sizes = tuple(np.empty((len(rank), len(side.parts))) for side in lines.sides)
        both = np.empty((len(rank) + 3, len(lines)))
        for kind in lines.kinds:
            boxes = []
            for axis, side, places, items in zip(kind.own, lines.sides, kind.places, sizes, strict=True):
                found = box(axis, Digit(side.stride[places], side.parts[places]), rank[:, None], side.lives[places])
                np.subtract(found[1], found[0], out=items[:, places])
                boxes.append([each.astype(np.int32) for each in found])
            self._overlap(kind, boxes[0], boxes[1], both[:-3])
            widest = [items.max(axis=0)[side.of[kind.ways]] for items, side in zip(sizes, lines.sides, strict=True)]
            counts = touched(kind.a, kind.b, (lines.x.size[kind.ways], lines.y.size[kind.ways]), (widest[0], widest[1]))
            for i, values in enumerate((1.0 if covers_once(kind.relation) else self._cover(kind), *counts), -3):
                both[i, kind.ways] = values
        return both, sizes

    def _overlap(self, kind: Kind, mine: Any, theirs: Any, out: Any) -> None:
        """What each rank has of the boxes, (start, stop), of both sides, for each two ways of a kind."""
        room = np.empty((3, len(out) * TOGETHER), np.int32)
        for begin in range(kind.ways.start, kind.ways.stop, TOGETHER):
            ways = slice(begin, min(begin + TOGETHER, kind.ways.stop))
            x, y = (side.of[ways] - places.start for side, places in zip(self.lines.sides, kind.places, strict=True))
            low, high, other = (each[: len(out) * len(x)].reshape(len(out), -1) for each in room)
            for found, pick, i in ((low, np.maximum, 0), (high, np.minimum, 1)):
                mine[i].take(x, axis=1, out=found, mode="clip")
                pick(found, theirs[i].take(y, axis=1, out=other, mode="clip"), out=found)
            np.maximum(np.subtract(high, low, out=high), 0, out=out[:, ways])

    def _cover(self, kind: Kind) -> Any:
        start, stop, begins = each_part(kind.own[1], self.lines.sides[1].parts[kind.places[1]])
        return self.lines.for_both(kind, np.add.reduceat(stop - start, begins) / kind.own[1].extent)

    def spans(self, block: Block) -> Any:
        """Of each case the aligned ranks among which a movement stays."""
        out = reduce(np.maximum, (self._distance.take(places) for places in block.index))
        for group, here in block.of(out):
            mine, theirs = _ends(group.have), _ends(group.want)
            lives, wants = mine.lives[:, None], theirs.lives
            np.maximum(here, np.maximum(mine.reach[:, None], theirs.reach), out=here)
            np.copyto(here, np.maximum(lives, wants), where=lives != wants)
        return np.minimum(out, self.ranks, out=out)

    @cached_property
    def _distance(self) -> Any:
        """Of each two ways; see `far`."""
        out = np.empty(len(self.lines), RANKS)
        for kind in self.lines.kinds:
            out[kind.ways] = far(kind.a, kind.b, *self.lines.cut(kind))
        return out

    def amounts(self, block: Block, out: Any) -> None:
        """The amounts of all cases of all pairs, one after the other, into [there or back, what `there_and_back` gives, cases]."""
        both, _ = self._along
        known = {}
        for group, index in block.of(block.index):
            shifts, (mine, theirs) = self.lines.shifts(group.members)[:, :, None, None], (_ends(group.have), _ends(group.want))
            share = shares((mine.spare[:, None], mine.same[:, None]), (theirs.spare[None], theirs.same[None]))
            known[id(group)] = (index[:, None], shifts, share, *self._items(group, index, shifts))
        end = 0
        for pieces in _together(block):
            room = self._room(sum(piece.size for piece in pieces))
            begin = 0
            for (group, members, rows), shape, size in ((piece, piece.shape, piece.size) for piece in pieces):
                index, shifts, share, mine, theirs = known[id(group)]
                here = slice(begin, begin + size)
                begin = here.stop
                np.add(index[:, :, rows], shifts[:, members], out=room.index[:, here].reshape(-1, *shape))
                for line, values in zip(room.share, share, strict=True):
                    line[here].reshape(shape)[...] = values[rows] if len(values) > 1 else values
                room.mine[:, here].reshape(-1, *shape)[...] = mine[:, members, rows, None]
                room.theirs[:, here].reshape(-1, *shape)[...] = theirs[:, members, None]
            both.take(room.index[0], axis=1, out=room.rows, mode="clip")
            for places in room.index[1:]:
                np.multiply(room.rows, both.take(places, axis=1, out=room.more, mode="clip"), out=room.rows)
            kept, (cover, touching, touched_back) = room.rows[:-3], room.rows[-3:]
            found = Common(Side(room.mine, cover, touching), Side(room.theirs, 1.0, touched_back), kept, kept.min(axis=0) > 0)
            begin, end = end, end + begin
            for way, sums in zip(out, there_and_back(found, Shares(*room.share), room.work), strict=True):
                for line, values in zip(way, sums, strict=True):
                    line[begin:end] = values

    def _room(self, cases: int) -> _Room:
        """Memory to work in, always the same: new memory costs more than what is done there."""
        lines = {"index": self.lines.width, "rows": len(self._along[0]), "more": len(self._along[0]), "share": 4}
        out = {}
        for name in _Room._fields:
            count = lines.get(name, len(self._along[0]) - 3)
            if len(self._memory.get(name, ())) < count * cases:
                self._memory[name] = np.empty(count * max(cases, TOGETHER), np.intp if name == "index" else np.float64)
            out[name] = self._memory[name][: count * cases].reshape(count, cases)
        return _Room(**out)

    def _items(self, group: Alike, index: Any, shifts: Any) -> tuple[Any, Any]:
        """[ranks, pairs, configurations]: items of the boxes of both ends of some pairs of layouts."""
        (x, y), (mine, theirs) = self.lines.sides, self._along[1]
        rows, columns = x.of[index[:, None, :, 0] + shifts[..., 0]], y.of[index[:, None, 0] + shifts[..., 0]]
        return np.multiply.reduce(mine[:, rows], axis=1), np.multiply.reduce(theirs[:, columns], axis=1)

    # -- halos -----------------------------------------------------------------------------------------------------
    @cached_property
    def _halos(self) -> tuple[Any, Any]:
        """Of each of the second layout's ways: the largest interval, where no window is cut, and what `sides` says, where one may be."""
        parts = self.lines.sides[1].parts
        rest, found = np.ones(len(parts), np.int64), np.zeros((len(parts), 3, 5), np.int64)
        found[..., 0] = 1
        for kind in self.lines.kinds:
            here = kind.places[1]
            if isinstance(kind.relation, Window):
                self._sides(kind, found[here])
            else:
                start, stop, begins = each_part(kind.own[1], parts[here])
                rest[here] = np.maximum.reduceat(stop - start, begins)
        return rest, found

    def _sides(self, kind: Kind, out: Any) -> None:
        """What `sides` says of each of the second layout's ways of a kind."""
        parts = self.lines.sides[1].parts[kind.places[1]]
        most = int(parts.max()) + 1
        number = np.repeat(np.arange(len(kind.lines)), [len(line.y) for line in kind.lines])
        different, at = np.unique(number * most + parts, return_inverse=True)
        whose, found = different // most, np.empty((len(different), 3, 5), np.int64)
        for n in set((different % most).tolist()):
            here = (different % most == n).nonzero()[0]
            lines = [kind.lines[i] for i in whose[here].tolist()]
            found[here] = sides_of([(line.a.unnamed, line.b.unnamed) for line in lines], n)
        out[...] = found[at]

    def halo(self, group: Alike, places: Any) -> Halo:
        """What the halos of some cases move, of every pair that is alike: the cases of one after those of the other.

        Parameters
        ----------
        places : [axes, cases]
            Of the two ways that the axes are cut in by the first pair.
        """
        rest, found = self._halos
        whole, items, digits, y = [], 1, [], self.lines.y
        for axis in (places[:, None] + self.lines.shifts(group.members)[:, :, None]).reshape(len(places), -1):
            theirs = self.lines.sides[1].of[axis]
            items = items * rest[theirs]
            if found[theirs, 0, 1:3].any():
                whole.append(found[theirs])
                digits.append(Digit(y.stride[axis], y.size[axis]))
            else:
                items = items * found[theirs, 0, 0]
        return Halo(items, whole, digits)


def _together(block: Block) -> Iterator[list[_Piece]]:
    """All cases in order, by about `TOGETHER`."""
    out, room = list[_Piece](), TOGETHER
    for group in block.groups:
        rows, columns = group.shape
        for members, some in _parts(len(group.members), rows, columns):
            piece = _Piece(group, members, some)
            if out and piece.size > room:
                yield out
                out, room = [], TOGETHER
            out.append(piece)
            room -= piece.size
    if out:
        yield out


def _parts(members: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Parts of pairs of layouts that are alike, of `TOGETHER` cases at most: several whole ones, or some rows of one."""
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
    out = np.empty((4, np.size(layout.config.n)), RANKS)
    out[0], (out[1], out[2]), out[3] = layout.config.ranks, copies(layout), reduce(np.maximum, map(reach, layout.spare), 1)
    return _Ends(*out)
