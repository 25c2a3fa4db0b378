"""What two layouts of a tensor have in common, on a few ranks spread over all of them, in closed form.

Where layouts are families that are paired (each configuration of one with each of the other), configurations that cut an axis alike are
worked out once for that axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.network.relation import Granule, Groups, Same
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Axis, Cuts, Layout, intervals, tabulate

#: Up to so many ranks, all of them count in a redistribution; of more, as many stand for all.
STANDING_FOR_ALL = 8


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
    block : int
        Aligned ranks among which a movement between them stays.
    """

    holder: Side
    wanter: Side
    kept: Any
    own: Any
    block: Any

    @property
    def turned(self) -> Common:
        """For the movement back."""
        return Common(self.wanter, self.holder, self.kept, self.own, self.block)


def common(holder: Layout, wanter: Layout, ranks: Any) -> Common:
    """Compare two layouts of a tensor."""
    stacked = any(a.variants for a in (*holder.axes, *wanter.axes))
    dimensions = 3 if stacked else max(np.ndim(holder.config.ranks), np.ndim(wanter.config.ranks))
    rank = np.minimum(holder.config.first, wanter.config.first) + standing_for_all(ranks, dimensions)
    kept: Any = 1.0
    sides: list[list[Any]] = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    for a, b in zip(holder.axes, wanter.axes, strict=True):
        x, y = holder.cuts(a), wanter.cuts(b)
        (x0, x1), (y0, y1) = _box(a, x, rank), _box(b, y, rank)
        kept = kept * _paired(np.maximum(np.minimum(x1, y1) - np.maximum(x0, y0), 0).astype(float), x, y)
        for side, mine, other, own, theirs, size in ((sides[0], a, b, x, y, x1 - x0), (sides[1], b, a, y, x, y1 - y0)):
            side[0] = side[0] * _paired(size, x, y)
            parts = theirs.digit.size
            if not np.ndim(parts) and parts == 1:
                continue
            if not isinstance(other.relation, (Same, Granule)):
                side[1] = side[1] * _paired(tabulate(_cover, (other,), parts), x, y)
            side[2] = side[2] * _paired(_touched(mine, other, own.digit.size, parts, size.max(axis=0)), x, y)
    return Common(Side(*sides[0]), Side(*sides[1]), kept, kept.min(axis=0) > 0, widest(holder, wanter, ranks))


def _paired(values: Any, x: Cuts, y: Cuts) -> Any:
    """What was worked out for every two cuts, for every two configurations that cut so."""
    if y.where is not None and np.shape(values)[-1:] not in ((), (1,)):
        values = values.take(y.where, axis=-1)
    if x.where is not None and np.shape(values)[-2:-1] not in ((), (1,)):
        values = values.take(x.where, axis=-2)
    return values


def _box(axis: Axis, cuts: Cuts, rank: Any) -> tuple[Any, Any]:
    """(start, stop) of several ranks along an axis; empty where the layer does not live."""
    at = rank - cuts.first
    lives = (at >= 0) & (at < cuts.ranks)
    start, stop = interval_arrays(axis, cuts.digit.size, np.where(lives, cuts.digit.of(at), 0))
    return np.where(lives, start, 0), np.where(lives, stop, 0)


def _touched(mine: Axis, other: Axis, own_parts: Any, parts: Any, widest_box: Any) -> Any:
    """How many parts of another layout touch the largest box along an axis."""
    most = np.clip(widest_box, 1, parts) if isinstance(other.relation, (Same, Granule)) else parts  # an index lies in one part
    touched = np.ceil(widest_box * parts / np.maximum(other.extent, 1))
    if isinstance(mine.relation, Same) and isinstance(other.relation, Same):
        # blocks nest: an even number of them makes up, or lies in, one of the other cut
        touched = np.where(parts % own_parts == 0, parts // own_parts, np.where(own_parts % parts == 0, 1, touched))
    return np.clip(touched, 1, most)


def standing_for_all(ranks: Any, dimensions: int) -> Any:
    """[8, ...] ranks: all of up to 8; of more, the last and one in the middle of all, of the first half, of the first quarter, ..."""
    ranks = np.asarray(ranks)
    each = np.arange(STANDING_FOR_ALL).reshape(-1, *([1] * max(dimensions, ranks.ndim)))
    part = np.maximum(ranks >> each // 2, 1)
    spread = np.where(each % 2 == 0, part - 1, 2 * part // 3)
    spread[-1] = 0
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
        x, y = holder.digits.get(x_axis.name, Digit(1, 1)), wanter.digits.get(y_axis.name, Digit(1, 1))
        plain = isinstance(x_axis.relation, Same) and isinstance(y_axis.relation, Same)
        alike = np.equal(x.stride, y.stride) & np.equal(x.size, y.size) & plain
        out = np.maximum(out, np.where(alike, 1, np.maximum(reach(x), reach(y))))
    for d in (*holder.spare, *wanter.spare):
        out = np.maximum(out, reach(d))
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
