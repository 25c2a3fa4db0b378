"""What two layouts of a tensor have in common, on a few ranks spread over all of them, in closed
form.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hpcpar.network.receptive_field import Granule, Relation, Same
from hpcpar.plan.axis import Axis, interval_arrays
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Layout

#: Up to so many ranks, all of them count in a redistribution; of more, as many stand for all.
STANDING_FOR_ALL = 8


class Side(NamedTuple):
    """One layout beside another, on the ranks that stand for all.

    Attributes
    ----------
    items : float
        Of each rank's box.
    cover : float
        How often the other layout's parts cover them.
    count : float
        How many of those parts touch the largest box.
    spare, same : int
        Ranks that hold the same box, and those of them that hold the same values too.
    """

    items: Any
    cover: Any
    count: Any
    spare: Any
    same: Any


def moved(holder: Side, wanter: Side, kept: Any, own: Any, room: Any, out: Any) -> None:
    """What a movement amounts to.

    Parameters
    ----------
    kept : float
        Items that a rank has in both layouts.
    own : bool
        Every rank has some.
    room : array
        To work in, of the shape of `kept`.
    out : array
        [4, ...]: items sent, messages, items received, messages.
    """
    sent, sent_count, into, into_count = out
    # of all copies of a part, each wanter asks one
    _lacking(holder, wanter.spare / holder.same, kept, own, room, sent, sent_count)
    _lacking(wanter, holder.spare // holder.same, kept, own, room, into, into_count)
    # where nobody receives, nobody sends
    nothing = into <= 0
    np.copyto(sent, 0, where=nothing)
    np.copyto(sent_count, 0, where=nothing)


def _lacking(side: Side, times: Any, kept: Any, own: Any, room: Any, out: Any, count: Any) -> None:
    """Items that cross to others, at most over ranks, and messages."""
    asked = side.cover * times
    items = side.items if (asked == 1).all() else np.multiply(side.items, asked, out=room)
    np.subtract(items, kept, out=room).max(axis=0, out=out)
    np.subtract(np.multiply(side.count, times, out=count), own, out=count)
    np.maximum(count, 1, out=count)
    np.copyto(count, 0, where=out <= 0)


def touched(a: Axis, b: Axis, parts: tuple[Any, Any], widest: tuple[Any, Any]) -> tuple[Any, Any]:
    """How many of the other layout's parts touch the holder's and the wanter's largest interval."""
    return _touched(a, b, *parts, widest[0]), _touched(b, a, *parts[::-1], widest[1])


def covers_once(relation: Relation) -> bool:
    """True where parts of an axis lie side by side: each index is needed by one."""
    return isinstance(relation, Same | Granule)


def box(axis: Axis, digit: Digit, at: Any, lives: Any) -> tuple[Any, Any]:
    """(start, stop) of several ranks along an axis; empty where the layer does not live."""
    there = (at >= 0) & (at < lives)
    start, stop = interval_arrays(axis, digit.size, np.where(there, digit.of(at), 0))
    return np.where(there, start, 0), np.where(there, stop, 0)


def _touched(mine: Axis, other: Axis, own_parts: Any, parts: Any, widest_box: Any) -> Any:
    """How many parts of another layout touch the largest box along an axis."""
    # an index lies in one part
    most = np.clip(widest_box, 1, parts) if covers_once(other.relation) else parts
    touched = np.ceil(widest_box * parts / np.maximum(other.extent, 1))
    if isinstance(mine.relation, Same) and isinstance(other.relation, Same):
        # blocks nest: an even number of them makes up, or lies in, one of the other cut
        touched = np.where(parts % own_parts == 0, parts // own_parts,
                           np.where(own_parts % parts == 0, 1, touched))
    return np.clip(touched, 1, most)


def standing_for_all(ranks: Any, dimensions: int) -> Any:
    """[8 at most, ...] ranks: all of up to 8; of more, the last and one in the middle of all, of
    the first half, first quarter, ...
    """
    ranks = np.asarray(ranks)
    each = np.arange(min(STANDING_FOR_ALL, int(ranks.max()))).reshape(-1, *([1] * max(dimensions, ranks.ndim)))
    part = np.maximum(ranks >> each // 2, 1)
    spread = np.where(each % 2 == 0, part - 1, 2 * part // 3)
    spread[STANDING_FOR_ALL - 1:] = 0
    return np.where(ranks <= STANDING_FOR_ALL, np.minimum(each, ranks - 1), spread)


def far(a: Axis, b: Axis, x: Digit, y: Digit) -> Any:
    """Aligned ranks within which a movement stays along an axis of two layouts."""
    out = np.maximum(reach(x), reach(y))
    if isinstance(a.relation, Same) and isinstance(b.relation, Same):
        return np.where(np.equal(x.stride, y.stride) & np.equal(x.size, y.size), 1, out)
    return out


def reach(digit: Digit) -> Any:
    """Aligned ranks within which a coordinate's neighbours all lie."""
    return np.where(np.greater(digit.size, 1), digit.stride * digit.size, 1)


def copies(layout: Layout) -> tuple[Any, Any]:
    """Ranks that hold the same box, and those of them that hold the same values too."""
    return math.prod(d.size for d in layout.spare), math.prod(d.size for d in layout.copies)
