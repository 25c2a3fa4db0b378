"""Messages from rank to rank: halos and redistributions, in seconds and bytes of the busiest rank, without walking ranks.

A halo is the same at every rank but for where its part lies along each axis, so the part that receives most decides, found once for each
degree of each axis. A redistribution is worked out on a few ranks spread over all of them, in closed form: what a rank wants
less what it holds, and what others want of what it holds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.cost.links import Wires
from hpcpar.machine.model import Machine
from hpcpar.network.relation import Granule, Groups, Same, Window
from hpcpar.plan.config import Digit
from hpcpar.plan.layout import Axis, Layout, intervals, tabulate
from hpcpar.schedule.builder import Move

#: Up to so many ranks, all of them count in a redistribution; of more, as many stand for all.
STANDING_FOR_ALL = 8
_CHUNK = 256


@dataclass(frozen=True)
class Direct:
    """A point-to-point step on its busiest rank.

    Attributes
    ----------
    seconds : float
        Sending and receiving at once, then summing and copying.
    messages, items : int
        Sent.
    level : int
        Index of the machine's level that it crosses.
    """

    seconds: Any
    messages: Any
    items: Any
    level: Any


# -- halos ----------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=50_000)
def sides(own: Axis, need: Axis, parts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the busiest part of an axis receives, and what the busiest sends: (kept, from below, from above, messages below, above).

    Items along this axis: `kept` of the needed interval the part holds itself, the others come from parts below and above.
    """
    (o0, o1), (w0, w1) = intervals(own, parts), intervals(need, parts)
    i = np.arange(parts)
    received: list[Sequence[int]] = []
    given: list[Sequence[int]] = []
    for begin in range(0, parts, _CHUNK):
        rows = slice(begin, begin + _CHUNK)
        # [wanting part, holding part]
        common = np.maximum(0, np.minimum(w1[rows, None], o1) - np.maximum(w0[rows, None], o0))
        below, above = i[None, :] < i[rows, None], i[None, :] > i[rows, None]
        received.append(_busiest(common, below, above, np.diagonal(common, begin)))
    for begin in range(0, parts, _CHUNK):
        columns = slice(begin, begin + _CHUNK)
        common = np.maximum(0, np.minimum(o1[columns, None], w1) - np.maximum(o0[columns, None], w0))
        below, above = i[None, :] < i[columns, None], i[None, :] > i[columns, None]
        given.append(_busiest(common, below, above, np.diagonal(common, begin)))
    return tuple(max(received, key=_moved)), tuple(max(given, key=_moved))


def _moved(side: Iterable[int]) -> int:
    _, below, above, *_ = side
    return below + above


def _busiest(common: Any, below: Any, above: Any, kept: Any) -> list[int]:
    low, high = (common * below).sum(1), (common * above).sum(1)
    at = int(np.argmax(low + high))
    return [int(kept[at]), int(low[at]), int(high[at]), int(((common > 0) & below)[at].sum()), int(((common > 0) & above)[at].sum())]


def halo(step: Move, wires: Wires, machine: Machine, ranks: Any) -> Direct:
    """A halo exchange, or its adjoint, whose parts send back what they received."""
    back = bool(np.any(step.pattern.reduce))
    own, need = (step.wanter, step.holder) if back else (step.holder, step.wanter)
    into, out, level = wires.once(("halo", step.item_bytes), own, need, lambda: _neighbours(own, need, step.item_bytes, wires, ranks))
    if back:
        into, out = out, into
    handled = into[2] * step.item_bytes * (machine.add_s_per_byte if back else machine.copy_s_per_byte)
    packed = out[2] * step.item_bytes * machine.copy_s_per_byte
    return Direct(np.maximum(into[0], out[0]) + handled + packed, out[1], out[2], level)


#: Seconds, messages and items.
Sums = list[Any]


def _neighbours(own: Layout, need: Layout, item_bytes: int, wires: Wires, ranks: Any) -> tuple[Sums, Sums, Any]:
    """What the busiest part receives and what the busiest sends, over every combination of sides; and the level that is crossed."""
    rest: Any = 1
    cuts: list[tuple[Any, Digit]] = []
    for a, b, largest in zip(own.axes, need.axes, need.largest, strict=True):
        if isinstance(b.relation, Window) and np.any(np.greater(need.degree(b), 1)):
            cuts.append((tabulate(sides, (a, b), need.degree(b)), need.digits[b.name]))
        else:
            rest = rest * largest
    into: Sums = [0.0, 0, 0]
    out: Sums = [0.0, 0, 0]
    for place in itertools.product((0, 1, 2), repeat=len(cuts)):
        crossing = [digit for side, (_, digit) in zip(place, cuts, strict=True) if side]
        if not crossing or not all(found[..., side].any() for side, (found, _) in zip(place, cuts, strict=True) if side):
            continue
        level: Any = 0
        for side, (_, digit) in zip(place, cuts, strict=True):
            if side:  # below lies across a unit's boundary if any part does, above if all do
                level = np.maximum(level, wires.index(digit.stride * (digit.size if side == 1 else np.minimum(digit.size, 2)), ranks))

        def flows(unit: Any, crossing: list[Digit] = crossing) -> Any:
            return functools.reduce(np.maximum, (_flows(digit, np.minimum(unit, ranks)) for digit in crossing))

        links = wires.links(level, flows)
        for way, sums in enumerate((into, out)):
            items, count = rest, 1
            for side, (found, _) in zip(place, cuts, strict=True):
                items = items * found[..., way, side]
                count = count * found[..., way, 2 + side] if side else count
            some = items > 0
            sums[0] = sums[0] + np.where(some, count * links.message_s(items * item_bytes / np.maximum(count, 1)), 0.0)
            sums[1] = sums[1] + np.where(some, count, 0)
            sums[2] = sums[2] + items
    block = functools.reduce(np.maximum, (_reach(digit) for _, digit in cuts), 1)
    return into, out, wires.index(block, ranks)


def _flows(digit: Digit, unit: Any) -> Any:
    """Messages to neighbours along a coordinate that leave a unit: of several parts inside, those at its two ends send, each one way."""
    ways = np.where(np.greater(digit.size, 2), 2, 1)
    return np.where(digit.stride < unit, np.minimum(ways * digit.stride, unit), unit)


# -- redistributions --------------------------------------------------------------------------------------------------
def redistribution(step: Move, wires: Wires, machine: Machine, ranks: Any) -> Direct:
    """Any movement between two layouts; with partial sums, every holder of a part of the sum sends its own."""
    holder, wanter = step.holder, step.wanter
    held, wanted, kept, own, block = _held_and_wanted(holder, wanter, wires, ranks)
    # of all copies of a part, each wanter asks one
    askers = math.prod(d.size for d in wanter.spare) / math.prod(d.size for d in holder.copies)
    parts = math.prod(d.size for d in holder.spare) // math.prod(d.size for d in holder.copies)
    out, out_count = _lacking(*_crossing(holder, held, wanter), askers, kept, own)
    into, into_count = _lacking(*_crossing(wanter, wanted, holder), parts, kept, own)
    size = step.item_bytes
    # where nobody receives, nobody sends
    out, out_count = np.where(into > 0, out, 0), np.where(into > 0, out_count, 0)
    if np.all(np.equal(holder.config.first, wanter.config.first)):
        sending = _spread_s(block, holder.config.ranks, out * size, out_count, wires, ranks)
        receiving = _spread_s(block, wanter.config.ranks, into * size, into_count, wires, ranks)
        level = wires.index(block, ranks)
    else:
        sending = _apart_s(holder, wanter, holder.config.ranks, out * size, out_count, wires)
        receiving = _apart_s(holder, wanter, wanter.config.ranks, into * size, into_count, wires)
        level = wires.between(*_ends(holder, wanter))
    seconds = np.maximum(sending, receiving)
    handled = into * size * (machine.add_s_per_byte if np.any(step.pattern.reduce) else machine.copy_s_per_byte)
    seconds = seconds + handled + out * size * machine.copy_s_per_byte
    return Direct(seconds, np.ceil(out_count).astype(np.int64), np.round(out).astype(np.int64), level)


#: A start and a stop for each axis.
Boxes = list[tuple[Any, Any]]


def _held_and_wanted(holder: Layout, wanter: Layout, wires: Wires, ranks: Any) -> tuple[Boxes, Boxes, Any, Any, Any]:
    """Boxes before and after of the ranks that stand for all; what they have in common, whether that is ever nothing; the block.

    A movement and its adjoint share them.
    """

    def work_out() -> tuple[Boxes, Boxes, Any, Any, Any]:
        stacked = any(a.variants for a in (*holder.axes, *wanter.axes))
        dimensions = 3 if stacked else max(np.ndim(holder.config.ranks), np.ndim(wanter.config.ranks))
        rank = np.minimum(holder.config.first, wanter.config.first) + standing_for_all(ranks, dimensions)
        held, wanted = _boxes(holder, rank), _boxes(wanter, rank)
        kept: Any = 1
        for (h0, h1), (w0, w1) in zip(held, wanted, strict=True):
            kept = kept * np.maximum(np.minimum(h1, w1) - np.maximum(h0, w0), 0)
        return held, wanted, kept, kept.min(axis=0) > 0, widest(holder, wanter, ranks)

    there = wires.known(("boxes",), wanter, holder)
    if there is not None:
        return (there[1], there[0], *there[2:])
    return wires.once(("boxes",), holder, wanter, work_out)


def _lacking(items: Any, cover: Any, count: Any, copies: Any, kept: Any, own: Any) -> tuple[Any, Any]:
    """Items that cross to others, at most over ranks, and messages."""
    total = (items * (cover * copies) - kept).max(axis=0)
    return total, np.where(total > 0, np.maximum(1, count * copies - own), 0)


def standing_for_all(ranks: Any, dimensions: int) -> Any:
    """[8, ...] ranks: all of up to 8; of more, the last and one in the middle of all, of the first half, of the first quarter, ..."""
    ranks = np.asarray(ranks)
    each = np.arange(STANDING_FOR_ALL).reshape(-1, *([1] * max(dimensions, ranks.ndim)))
    part = np.maximum(ranks >> each // 2, 1)
    spread = np.where(each % 2 == 0, part - 1, 2 * part // 3)
    spread[-1] = 0
    return np.where(ranks <= STANDING_FOR_ALL, np.minimum(each, ranks - 1), spread)


def _spread_s(block: Any, active: Any, n_bytes: Any, count: Any, wires: Wires, ranks: Any) -> Any:
    """Seconds of `count` messages of `n_bytes` in all, to ranks spread evenly over a block.

    Parameters
    ----------
    active : int
        Ranks that send (or receive) like this one at the same time.
    """
    index = np.asarray(wires.index(block, ranks))
    unit = np.minimum(wires.inner[index], block)
    away = (block - unit) / np.maximum(block - 1, 1)  # part of the other ranks that lies outside the unit
    far = wires.links(index, lambda u: np.minimum(u, active) * (1 - np.minimum(u, block) / block))
    near = wires.links(np.maximum(index - 1, 0), lambda u: np.minimum(u, active))
    each = n_bytes / np.maximum(count, 1)
    return count * (away * far.message_s(each) + (1 - away) * np.where(unit > 1, near.message_s(each), 0.0))


def _apart_s(holder: Layout, wanter: Layout, active: Any, n_bytes: Any, count: Any, wires: Wires) -> Any:
    """Seconds of `count` messages of `n_bytes` in all between two stages that live on different ranks."""
    level = wires.between(*_ends(holder, wanter))
    return count * wires.links(level, lambda unit: np.minimum(unit, active)).message_s(n_bytes / np.maximum(count, 1))


def _ends(holder: Layout, wanter: Layout) -> tuple[Any, Any]:
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
        out = np.maximum(out, np.where(alike, 1, np.maximum(_reach(x), _reach(y))))
    for d in (*holder.spare, *wanter.spare):
        out = np.maximum(out, _reach(d))
    first, last = _ends(holder, wanter)
    return np.minimum(np.where(same, out, last - first + 1), ranks)


def _reach(digit: Digit) -> Any:
    return np.where(np.greater(digit.size, 1), digit.stride * digit.size, 1)


def _boxes(layout: Layout, rank: Any) -> list[tuple[Any, Any]]:
    """Boxes of several ranks as one (start, stop) for each axis; empty where the layer does not live."""
    at = rank - layout.config.first
    lives = (at >= 0) & (at < layout.config.ranks)
    out = []
    for a in layout.axes:
        digit = layout.digits.get(a.name, Digit(1, 1))
        start, stop = interval_arrays(a, digit.size, np.where(lives, digit.of(at), 0))
        out.append((np.where(lives, start, 0), np.where(lives, stop, 0)))
    return out


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


def _crossing(layout: Layout, box: Boxes, other: Layout) -> tuple[Any, Any, Any]:
    """(items of each rank's box, how often the parts of another layout cover them, how many of the parts touch the largest box)."""
    items: Any = 1.0
    cover: Any = 1.0
    count: Any = 1.0
    for (start, stop), mine, a in zip(box, layout.axes, other.axes, strict=True):
        size, parts = stop - start, other.degree(a)
        items = items * size
        if not np.ndim(parts) and parts == 1:
            continue
        most, widest_box = parts, size.max(axis=0)
        if isinstance(a.relation, (Same, Granule)):
            most = np.clip(widest_box, 1, parts)  # an index lies in one part
        else:
            cover = cover * tabulate(_cover, (a,), parts)
        touched = np.ceil(widest_box * parts / np.maximum(a.extent, 1))
        if isinstance(mine.relation, Same) and isinstance(a.relation, Same):
            # blocks nest: an even number of them makes up, or lies in, one of the other cut
            own = layout.degree(mine)
            touched = np.where(parts % own == 0, parts // own, np.where(own % parts == 0, 1, touched))
        count = count * np.clip(touched, 1, most)
    return items, cover, count


@lru_cache(maxsize=50_000)
def _cover(axis: Axis, parts: int) -> float:
    """How often the parts cover the axis."""
    start, stop = intervals(axis, parts)
    return float((stop - start).sum() / axis.extent)
