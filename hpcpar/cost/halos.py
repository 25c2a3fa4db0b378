"""Halos: messages to neighbours along the cut axes of an image, in seconds and items of the busiest rank, without walking ranks.

A halo is the same at every rank but for where its part lies along each axis, so the part that receives most decides, found once for each
degree of each axis.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpcpar.cost.common import reach
from hpcpar.cost.direct import Direct
from hpcpar.cost.links import Wires
from hpcpar.network.relation import Window
from hpcpar.plan.config import Digit, Ints
from hpcpar.plan.layout import Axis, Layout, intervals, tabulate
from hpcpar.schedule.parts import Move
from hpcpar.schedule.steps import Kind

_CHUNK = 256


@lru_cache(maxsize=50_000)
def sides(own: Axis, need: Axis, parts: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """What the busiest part of an axis receives, and what the busiest sends: (kept, from below, from above, messages below, above).

    Items along this axis: `kept` of the needed interval the part holds itself, the others come from parts below and above. Third, of the
    part through whose buffers most goes: (kept, received, sent, 0, 0).
    """
    if parts == 1:  # nobody to receive from
        alone = (int(own.extent), 0, 0, 0, 0)
        return alone, alone, alone
    (o0, o1), (w0, w1) = intervals(own, parts), intervals(need, parts)
    received: list[Sequence[int]] = []
    given: list[Sequence[int]] = []
    through = np.zeros((2, parts), np.int64)
    for begin in range(0, parts, _CHUNK):
        some = slice(begin, begin + _CHUNK)
        # [wanting part, holding part], and the other way round
        for way, (found, (a0, a1), (b0, b1)) in enumerate(((received, (w0, w1), (o0, o1)), (given, (o0, o1), (w0, w1)))):
            common = np.maximum(0, np.minimum(a1[some, None], b1) - np.maximum(a0[some, None], b0))
            moved = common.sum(1) - np.diagonal(common, begin)
            found.append(_busiest(common, moved, begin))
            through[way, some] = moved
    at = int(through.sum(axis=0).argmax())
    kept = max(0, int(min(o1[at], w1[at]) - max(o0[at], w0[at])))
    both = (kept, int(through[0, at]), int(through[1, at]), 0, 0)
    return tuple(max(received, key=_moved)), tuple(max(given, key=_moved)), both


def _moved(side: Iterable[int]) -> int:
    _, below, above, *_ = side
    return below + above


def _busiest(common: Any, moved: Any, begin: int) -> list[int]:
    """The part, of some from `begin` on, that shares most with others, as much as `moved` says."""
    at = int(np.argmax(moved))
    own, line = begin + at, common[at]
    below = int(line[:own].sum())
    return [int(line[own]), below, int(moved[at]) - below, int(np.count_nonzero(line[:own])), int(np.count_nonzero(line[own + 1:]))]


@dataclass(frozen=True)
class Halo:
    """What a halo exchange, and its adjoint, moves.

    Attributes
    ----------
    rest : int
        Items across the axes that no window is cut along.
    found : list of ndarray
        For each of the others what `sides` says: [..., receiving, giving or both, 5].
    digits : list of Digit
        The coordinates that cut them.
    """

    rest: Any
    found: list[Any]
    digits: list[Digit]


def halo_of(own: Layout, need: Layout) -> Halo:
    """The halo between what ranks own and what they need; both directions share it."""
    key = ("halo", id(need))
    if key not in own.memo:
        own.memo[key] = (_halo_of(own, need), need)  # kept, so that no other layout gets its id
    return own.memo[key][0]


def _halo_of(own: Layout, need: Layout) -> Halo:
    rest: Any = 1
    found: list[Any] = []
    digits: list[Digit] = []
    for a, b, largest in zip(own.axes, need.axes, need.largest, strict=True):
        if isinstance(b.relation, Window) and np.any(np.greater(need.degree(b), 1)):
            found.append(tabulate(sides, (a, b), need.degree(b)))
            digits.append(need.digits[b.name])
        else:
            rest = rest * largest
    return Halo(rest, found, digits)


def through_items(halo: Halo) -> Any:
    """Items that the part through whose buffers most goes receives and sends."""
    boxes: list[Any] = [1, 1, 1]  # kept, with what is received, with what is sent
    for found in halo.found:
        kept, received, sent = (found[..., 2, i] for i in range(3))
        boxes = [box * items for box, items in zip(boxes, (kept, kept + received, kept + sent), strict=True)]
    return halo.rest * (boxes[1] + boxes[2] - 2 * boxes[0])


#: Seconds, messages and items.
Sums = list[Any]


def halo(step: Move, wires: Wires, ranks: Any) -> Direct:
    """A halo exchange, or its adjoint, whose parts send back what they received."""
    back = bool(np.any(step.pattern.reduce))
    own, need = (step.wanter, step.holder) if back else (step.holder, step.wanter)
    into, out, level = wires.once(
        ("halo", step.item_bytes), own, need, lambda: neighbours(halo_of(own, need), step.item_bytes, wires, ranks))
    if back:
        into, out = out, into
    return Direct(halo_s(into, out, level, step.item_bytes, wires, back), out[1], out[2], through_items(halo_of(own, need)), level)


def halo_s(into: Sums, out: Sums, level: Any, item_bytes: Ints, wires: Wires, back: Any) -> Any:
    """Seconds of the busiest part, packing and unpacking (or, of an adjoint, adding) included."""
    machine = wires.machine
    handled = into[2] * item_bytes * np.where(back, machine.add_s_per_byte, machine.copy_s_per_byte)
    seconds = np.maximum(into[0], out[0]) + handled + out[2] * item_bytes * machine.copy_s_per_byte
    return seconds * wires.factor(level, Kind.HALO, "direct", np.maximum(into[2], out[2]) * item_bytes)


def neighbours(halo: Halo, item_bytes: Ints, wires: Wires, ranks: Any) -> tuple[Sums, Sums, Any]:
    """What the busiest part receives and what the busiest sends, over every combination of sides; and the level that is crossed."""
    cuts = list(zip(halo.found, halo.digits, strict=True))
    some = [[bool(found[..., side].any()) for side in (0, 1, 2)] for found in halo.found]
    into: Sums = [0.0, 0, 0]
    out: Sums = [0.0, 0, 0]
    for place in itertools.product((0, 1, 2), repeat=len(cuts)):
        crossing = [digit for side, digit in zip(place, halo.digits, strict=True) if side]
        if not crossing or not all(there[side] for side, there in zip(place, some, strict=True) if side):
            continue
        level: Any = 0
        for side, (_, digit) in zip(place, cuts, strict=True):
            if side:  # below lies across a unit's boundary if any part does, above if all do
                level = np.maximum(level, wires.index(digit.stride * (digit.size if side == 1 else np.minimum(digit.size, 2)), ranks))

        def flows(unit: Any, crossing: list[Digit] = crossing) -> Any:
            return functools.reduce(np.maximum, (_flows(digit, np.minimum(unit, ranks)) for digit in crossing))

        links = wires.links(level, flows)
        for way, sums in enumerate((into, out)):
            items, count = halo.rest, 1
            for side, (found, _) in zip(place, cuts, strict=True):
                items = items * found[..., way, side]
                count = count * found[..., way, 2 + side] if side else count
            happens = items > 0
            sums[0] = sums[0] + np.where(happens, count * links.message_s(items * item_bytes / np.maximum(count, 1)), 0.0)
            sums[1] = sums[1] + np.where(happens, count, 0)
            sums[2] = sums[2] + items
    block = functools.reduce(np.maximum, (reach(digit) for digit in halo.digits), 1)
    return into, out, wires.index(block, ranks)


def _flows(digit: Digit, unit: Any) -> Any:
    """Messages to neighbours along a coordinate that leave a unit: of several parts inside, those at its two ends send, each one way."""
    ways = np.where(np.greater(digit.size, 2), 2, 1)
    return np.where(digit.stride < unit, np.minimum(ways * digit.stride, unit), unit)
