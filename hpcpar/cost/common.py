"""What two layouts of a tensor have in common, on a few ranks spread over all of them, in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.relation import Granule, Relation, Same
from hpcpar.plan.axis import Axis, interval_arrays, intervals, tabulate
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout

#: Up to so many ranks, all of them count in a redistribution; of more, as many stand for all.
STANDING_FOR_ALL = 8
ONE = Digit(1, 1)


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


#: Starts and stops of the intervals of some ranks.
Box = tuple[Any, Any]


class Along(NamedTuple):
    """Two layouts along one axis.

    Attributes
    ----------
    overlap : float
        What a rank has in both, [ranks that stand for all, cases].
    sizes : tuple of (holder's, wanter's)
        Of each rank's interval.
    covers, counts : tuple of (holder's, wanter's)
        How often the other's parts cover the axis, and how many of them touch the largest interval.
    """

    overlap: Any
    sizes: tuple[Any, Any]
    covers: tuple[Any, Any]
    counts: tuple[Any, Any]


def along(a: Axis, b: Axis, parts: tuple[Any, Any], boxes: tuple[Box, Box], covers: tuple[Any, Any]) -> Along:
    """Compare two layouts along one axis.

    Parameters
    ----------
    parts, boxes, covers : tuple of (holder's, wanter's)
        How many parts the axis is cut into, what `box` says, and how often the other's parts cover it.
    """
    (x0, x1), (y0, y1) = boxes
    overlap = np.maximum(np.minimum(x1, y1) - np.maximum(x0, y0), 0).astype(float)
    sizes = (x1 - x0, y1 - y0)
    return Along(overlap, sizes, covers, touched(a, b, parts, (sizes[0].max(axis=0), sizes[1].max(axis=0))))


def touched(a: Axis, b: Axis, parts: tuple[Any, Any], widest: tuple[Any, Any]) -> tuple[Any, Any]:
    """How many of the other layout's parts touch the holder's and the wanter's largest interval."""
    return _touched(a, b, *parts, widest[0]), _touched(b, a, *parts[::-1], widest[1])


def common(holder: Layout, wanter: Layout, ranks: Any) -> Common:
    """Compare two layouts of a tensor."""
    configs = (holder.config, wanter.config)
    rank = np.minimum(*(c.first for c in configs)) + standing_for_all(ranks, max(np.ndim(c.ranks) for c in configs))
    at, lives = tuple(rank - c.first for c in configs), tuple(c.ranks for c in configs)
    axes = []
    for a, b in zip(holder.axes, wanter.axes, strict=True):
        x, y = holder.digits.get(a.name, ONE), wanter.digits.get(b.name, ONE)
        boxes = (box(a, x, at[0], lives[0]), box(b, y, at[1], lives[1]))
        axes.append(along(a, b, (x.size, y.size), boxes, (_covers(b, y.size), _covers(a, x.size))))
    return product(axes)


def product(axes: Iterable[Along]) -> Common:
    """Two layouts along all axes."""
    kept: Any = 1.0
    items, covers, counts = [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]
    for axis in axes:
        kept = kept * axis.overlap
        for i in (0, 1):
            items[i], covers[i], counts[i] = items[i] * axis.sizes[i], covers[i] * axis.covers[i], counts[i] * axis.counts[i]
    holder, wanter = (Side(*each) for each in zip(items, covers, counts, strict=True))
    return Common(holder, wanter, kept, kept.min(axis=0) > 0)


def covers_once(relation: Relation) -> bool:
    """True where parts of an axis lie side by side: each index is needed by one."""
    return isinstance(relation, Same | Granule)


def _covers(axis: Axis, parts: Any) -> Any:
    """How often the parts of an axis cover it."""
    return 1.0 if covers_once(axis.relation) or (isinstance(parts, int) and parts == 1) else tabulate(_cover, (axis,), parts)


def box(axis: Axis, digit: Digit, at: Any, lives: Any) -> Box:
    """(start, stop) of several ranks along an axis; empty where the layer does not live."""
    there = (at >= 0) & (at < lives)
    start, stop = interval_arrays(axis, digit.size, np.where(there, digit.of(at), 0))
    return np.where(there, start, 0), np.where(there, stop, 0)


def _touched(mine: Axis, other: Axis, own_parts: Any, parts: Any, widest_box: Any) -> Any:
    """How many parts of another layout touch the largest box along an axis."""
    if not np.ndim(parts) and parts == 1:
        return 1
    most = np.clip(widest_box, 1, parts) if covers_once(other.relation) else parts  # an index lies in one part
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
    for x, y in zip(holder.axes, wanter.axes, strict=True):
        out = np.maximum(out, far(x, y, holder.digits.get(x.name, ONE), wanter.digits.get(y.name, ONE)))
    for layout in (holder, wanter):
        out = np.maximum(out, reduce(np.maximum, map(reach, layout.spare), 1))
    first, last = ends(holder, wanter)
    return np.minimum(np.where(same, out, last - first + 1), ranks)


def far(a: Axis, b: Axis, x: Digit, y: Digit) -> Any:
    """Aligned ranks within which a movement stays along an axis of two layouts."""
    out = np.maximum(reach(x), reach(y))
    if isinstance(a.relation, Same) and isinstance(b.relation, Same):
        return np.where(np.equal(x.stride, y.stride) & np.equal(x.size, y.size), 1, out)
    return out


def reach(digit: Digit) -> Any:
    """Aligned ranks within which a coordinate's neighbours all lie."""
    return np.where(np.greater(digit.size, 1), digit.stride * digit.size, 1)


@lru_cache(maxsize=50_000)
def _cover(axis: Axis, parts: int) -> float:
    """How often the parts cover the axis."""
    start, stop = intervals(axis, parts)
    return float((stop - start).sum() / axis.extent)
