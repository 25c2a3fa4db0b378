"""What two layouts of a tensor have in common, on a few ranks spread over all of them, in closed form.

Where layouts are families that are paired (each configuration of one with each of the other), configurations that cut an axis alike are
worked out once for that axis.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.relation import Granule, Groups, Same
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Axis, Cuts, Layout, intervals, paired, tabulate
from hpcpar.plan.stack import members, stack_axes

#: Up to so many ranks, all of them count in a redistribution; of more, as many stand for all.
STANDING_FOR_ALL = 8
#: Numbers of an array that tensors of a stack are worked on together in: enough to make calls cheap, few enough for a processor's cache.
MOST = 65_536


@dataclass(frozen=True)
class Side:
    """One layout beside another.

    Attributes
    ----------
    items : float
        Of each rank's box.
    cover : float
        How often the other layout's parts cover them.
    count : float
        How many of those parts touch the largest box.
    """

    items: Any
    cover: Any
    count: Any


@dataclass(frozen=True)
class Common:
    """Two layouts on the ranks that stand for all.

    Attributes
    ----------
    kept : float
        Items that a rank has in both.
    own : bool
        Every rank has some.
    """

    holder: Side
    wanter: Side
    kept: Any
    own: Any


class Along(NamedTuple):
    """Two layouts along one axis, for every two ways of cutting it.

    Attributes
    ----------
    overlap : float
        What a rank has in both.
    sizes, touched : tuple of (holder's, wanter's)
        Of each rank's interval; how many of the other's parts touch the largest.
    """

    overlap: Any
    sizes: tuple[Any, Any]
    touched: tuple[Any, Any]


#: For each of the tensors of a stack, for each axis.
Alongs = Sequence[Sequence[Along]]


def along(a: Axis, b: Axis, x: Cuts, y: Cuts, rank: Any) -> Along:
    """Compare two layouts along one axis, on some ranks."""
    (x0, x1), (y0, y1) = _box(a, x, rank), _box(b, y, rank)
    overlap = np.maximum(np.minimum(x1, y1) - np.maximum(x0, y0), 0).astype(float)
    sizes = (x1 - x0, y1 - y0)
    touched = (_touched(a, b, x.digit.size, y.digit.size, sizes[0]), _touched(b, a, y.digit.size, x.digit.size, sizes[1]))
    return Along(overlap, sizes, touched)


def common(holder: Layout, wanter: Layout, ranks: Any, known: Alongs | None = None) -> list[Common]:
    """Compare two layouts of a tensor, or of every tensor of a stack; `known` is what is at hand along axes."""
    pairs = list(zip(*members(holder, wanter), strict=True))
    if known is None:
        rank = np.minimum(holder.config.first, wanter.config.first) + standing_for_all(
            ranks, max(np.ndim(holder.config.ranks), np.ndim(wanter.config.ranks)))
        known = [[along(a, b, h.cuts(a), w.cuts(b), rank) for a, b in zip(h.axes, w.axes, strict=True)] for h, w in pairs]
    # what is the same along an axis of all of them is multiplied once
    alike = [all(other is each[0] for other in each) for each in zip(*known, strict=True)]
    lines = [[(a, b, h.cuts(a), w.cuts(b), each) for a, b, each in zip(h.axes, w.axes, found, strict=True)]
             for (h, w), found in zip(pairs, known, strict=True)]
    whole = reduce(_times, (_stacked([line]) for line in itertools.compress(lines[0], alike)), _Product())
    if all(alike):
        return [whole.common]
    cases = len(known[0][0].overlap) * int(np.size(holder.config.n)) * int(np.size(wanter.config.n))
    step = max(1, MOST // cases)
    every = list(itertools.compress(zip(*lines, strict=True), map(operator.not_, alike)))
    return [reduce(_times, (_stacked(each[i: i + step]) for each in every), whole).common for i in range(0, len(pairs), step)]


#: An axis of two layouts, how each cuts it, and what they have in common along it.
_Line = tuple[Axis, Axis, Cuts, Cuts, Along]


def _stacked(lines: Sequence[_Line]) -> _Line:
    """The same axis of several tensors of a stack, which comes after the axis of ranks and before those of cases."""
    a, b, x, y, first = lines[0]
    if len(lines) == 1:
        return a, b, x, y, Along(first.overlap[:, None], (first.sizes[0][:, None], first.sizes[1][:, None]), first.touched)
    found = [line[-1] for line in lines]
    sizes = (np.stack([each.sizes[0] for each in found], axis=1), np.stack([each.sizes[1] for each in found], axis=1))
    touched = (np.stack([each.touched[0] for each in found]), np.stack([each.touched[1] for each in found]))
    overlap = np.stack([each.overlap for each in found], axis=1)
    return stack_axes([line[0] for line in lines]), stack_axes([line[1] for line in lines]), x, y, Along(overlap, sizes, touched)


class _Product(NamedTuple):
    """What two layouts have in common along some axes; of `Side`'s fields those of the holder and of the wanter."""

    kept: Any = None
    items: tuple[Any, Any] = (1.0, 1.0)
    covers: tuple[Any, Any] = (1.0, 1.0)
    counts: tuple[Any, Any] = (1.0, 1.0)

    @property
    def common(self) -> Common:
        holder, wanter = (Side(*each) for each in zip(self.items, self.covers, self.counts, strict=True))
        return Common(holder, wanter, self.kept, self.kept.min(axis=0) > 0)


def _times(product: _Product, line: _Line) -> _Product:
    """With one axis more."""
    a, b, x, y, found = line
    overlap = paired(found.overlap, x, y)
    items = (product.items[0] * paired(found.sizes[0], x, y), product.items[1] * paired(found.sizes[1], x, y))
    covers, counts = list(product.covers), list(product.counts)
    for side, (other, theirs) in enumerate(((b, y), (a, x))):
        parts = theirs.digit.size
        if isinstance(parts, int) and parts == 1:
            continue
        if not isinstance(other.relation, (Same, Granule)):
            covers[side] = covers[side] * paired(tabulate(_cover, (other,), parts), x, y)
        counts[side] = counts[side] * paired(found.touched[side], x, y)
    kept = overlap if product.kept is None else product.kept * overlap
    return _Product(kept, items, (covers[0], covers[1]), (counts[0], counts[1]))


def _box(axis: Axis, cuts: Cuts, rank: Any) -> tuple[Any, Any]:
    """(start, stop) of several ranks along an axis; empty where the layer does not live."""
    at = rank - cuts.first
    lives = (at >= 0) & (at < cuts.ranks)
    start, stop = interval_arrays(axis, cuts.digit.size, np.where(lives, cuts.digit.of(at), 0))
    return np.where(lives, start, 0), np.where(lives, stop, 0)


def _touched(mine: Axis, other: Axis, own_parts: Any, parts: Any, sizes: Any) -> Any:
    """How many parts of another layout touch the largest box along an axis."""
    if not np.ndim(parts) and parts == 1:
        return 1
    widest_box = sizes.max(axis=0)
    most = np.clip(widest_box, 1, parts) if isinstance(other.relation, (Same, Granule)) else parts  # an index lies in one part
    touched = np.ceil(widest_box * parts / np.maximum(other.extent, 1))
    if isinstance(mine.relation, Same) and isinstance(other.relation, Same):
        # blocks nest: an even number of them makes up, or lies in, one of the other cut
        touched = np.where(parts % own_parts == 0, parts // own_parts, np.where(own_parts % parts == 0, 1, touched))
    return np.clip(touched, 1, most)


def standing_for_all(ranks: Any, dimensions: int) -> Any:
    """[8 at most, ...] ranks: all of up to 8; of more, the last and one in the middle of all, of the first half, first quarter, ..."""
    ranks = np.asarray(ranks)
    each = np.arange(min(STANDING_FOR_ALL, int(ranks.max()))).reshape(-1, *([1] * max(dimensions, ranks.ndim)))
    part = np.maximum(ranks >> each // 2, 1)
    spread = np.where(each % 2 == 0, part - 1, 2 * part // 3)
    spread[STANDING_FOR_ALL - 1:] = 0
    return np.where(ranks <= STANDING_FOR_ALL, np.minimum(each, ranks - 1), spread)


def ends(holder: Layout, wanter: Layout) -> tuple[Any, Any]:
    """The first and the last rank of both."""
    a, b = holder.config, wanter.config
    return np.minimum(a.first, b.first), np.maximum(a.first + a.ranks, b.first + b.ranks) - 1


def widest(holder: Layout, wanter: Layout, ranks: Any) -> Any:
    """Aligned ranks among which a movement stays: up to the slowest coordinate in which the layouts differ."""
    out: Any = 1
    a, b = holder.config, wanter.config
    same = np.equal(a.first, b.first) & np.equal(a.ranks, b.ranks)
    for x_axis, y_axis in zip(holder.axes, wanter.axes, strict=True):
        x_cuts, y_cuts = holder.cuts(x_axis), wanter.cuts(y_axis)
        x, y = x_cuts.digit, y_cuts.digit
        far = np.maximum(reach(x), reach(y))
        if isinstance(x_axis.relation, Same) and isinstance(y_axis.relation, Same):
            far = np.where(np.equal(x.stride, y.stride) & np.equal(x.size, y.size), 1, far)
        out = np.maximum(out, paired(far, x_cuts, y_cuts))
    for layout in (holder, wanter):
        out = np.maximum(out, reduce(np.maximum, map(reach, layout.spare), 1))
    first, last = ends(holder, wanter)
    return np.minimum(np.where(same, out, last - first + 1), ranks)


def reach(digit: Digit) -> Any:
    """Aligned ranks within which a coordinate's neighbours all lie."""
    return np.where(np.greater(digit.size, 1), digit.stride * digit.size, 1)


def interval_arrays(axis: Axis, parts: Any, index: Any) -> tuple[Any, Any]:
    """`Axis.interval` for arrays of degrees and indices."""
    units = axis.out_extent // axis.granule
    start, stop = index * units // parts * axis.granule, (index + 1) * units // parts * axis.granule
    relation = axis.relation
    if not isinstance(relation, Same):
        start, stop = relation.needed_array(start, stop, axis.extent)
    if isinstance(relation, Groups):
        coarse, fine = relation.groups % parts == 0, parts % relation.groups == 0
        blocks, place = np.where(fine, relation.groups, parts), np.where(fine, index * relation.groups // parts, index)
        start = np.where(coarse | fine, place * axis.extent // blocks, start)
        stop = np.where(coarse | fine, (place + 1) * axis.extent // blocks, stop)
    whole = np.equal(parts, 1)
    return np.where(whole, 0, start), np.where(whole, axis.extent, stop)


@lru_cache(maxsize=50_000)
def _cover(axis: Axis, parts: int) -> float:
    """How often the parts cover the axis."""
    start, stop = intervals(axis, parts)
    return float((stop - start).sum() / axis.extent)
