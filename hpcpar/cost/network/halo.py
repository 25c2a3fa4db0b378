"""The price of a halo exchange: messages to neighbours along the cut axes of an image.

A halo is the same at every rank but for where its part lies along each axis. So the part that
receives most decides, found once for each degree of each axis.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from hpcpar.cost.network.contention import Wires
from hpcpar.cost.network.redistribution import PointToPoint
from hpcpar.cost.network.volumes import reach
from hpcpar.network.receptive_field import Window
from hpcpar.plan.axis import Axis, IntArray, all_intervals, tabulate
from hpcpar.plan.config import Digit, Floats, Ints, Numbers
from hpcpar.plan.layout import Layout
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Kind

#: Columns of `axis_halo`.
KEPT, BELOW, ABOVE, MESSAGES_BELOW, MESSAGES_ABOVE = range(5)
#: Rows of `axis_halo`.
RECEIVING, SENDING, BOTH = range(3)


@dataclass(frozen=True)
class Halo:
    """What a halo exchange, and its adjoint, moves.

    Attributes
    ----------
    rest : int
        Items across the axes that no window is cut along.
    axes : list of ndarray
        `axis_halo` of each of the others: [..., 3, 5].
    digits : list of Digit
        The coordinates that cut them.
    """

    rest: Ints
    axes: list[IntArray]
    digits: list[Digit]

    @property
    def through_items(self) -> Numbers:
        """Items received and sent by the part with most of them."""
        both = [found[..., BOTH, :] for found in self.axes]
        kept = math.prod(x[..., KEPT] for x in both)
        received = math.prod(x[..., KEPT] + x[..., BELOW] for x in both)
        sent = math.prod(x[..., KEPT] + x[..., ABOVE] for x in both)
        return self.rest * (received + sent - 2 * kept)


def halo_of(own: Layout, need: Layout) -> Halo:
    """The halo between what ranks own and what they need; both directions share it."""
    rest: Ints = 1
    out = Halo(1, [], [])
    for a, b, largest in zip(own.axes, need.axes, need.largest, strict=True):
        degree = need.degree(b)
        if isinstance(b.relation, Window) and np.any(np.greater(degree, 1)):
            out.axes.append(tabulate(partial(axis_halo, a, b), degree))
            out.digits.append(need.digits[b.name])
        else:
            rest = rest * largest
    return Halo(rest, out.axes, out.digits)


@lru_cache(maxsize=50_000)
def axis_halo(own: Axis, need: Axis, parts: int) -> IntArray:
    """What the busiest parts of an axis move.

    Returns
    -------
    ndarray
        [3, 5]. Row RECEIVING is of the part that receives most, SENDING of the one that sends
        most: items along this axis that it keeps, that come from (go to) parts below and above it,
        and messages below and above. Row BOTH is of the part through whose buffers most goes:
        kept, received, sent, 0, 0.
    """
    (own0, own1), (need0, need1) = all_intervals(own, parts), all_intervals(need, parts)
    kept = np.maximum(0, np.minimum(own1, need1) - np.maximum(own0, need0))
    # how many parts need each index, and the sum of that up to each
    starts = np.bincount(need0, minlength=own.extent + 1)
    stops = np.bincount(need1, minlength=own.extent + 1)
    needed_before = np.concatenate(([0], np.cumsum(np.cumsum(starts - stops))))
    received = need1 - need0 - kept
    sent = needed_before[own1] - needed_before[own0] - kept
    out = np.zeros((3, 5), np.int64)
    for row, moved, mine, theirs in (
        (RECEIVING, received, (need0, need1), (own0, own1)),
        (SENDING, sent, (own0, own1), (need0, need1)),
    ):
        at = int(np.argmax(moved))
        common = np.minimum(mine[1][at], theirs[1]) - np.maximum(mine[0][at], theirs[0])
        common = np.maximum(0, common)
        out[row] = (kept[at], common[:at].sum(), common[at + 1:].sum(),
                    np.count_nonzero(common[:at]), np.count_nonzero(common[at + 1:]))
    at = int(np.argmax(received + sent))
    out[BOTH, :3] = kept[at], received[at], sent[at]
    return out


@dataclass
class NeighbourSums:
    """What a part does over all of its neighbours: seconds, messages and items."""

    seconds: Floats = 0.0
    messages: Ints = 0
    items: Ints = 0


def halo(step: Move, wires: Wires, ranks: Ints) -> PointToPoint:
    """A halo exchange, or its adjoint, whose parts send back what they received."""
    back = step.pattern.adds
    own, need = (step.wanter, step.holder) if back else (step.holder, step.wanter)
    found = halo_of(own, need)
    received, sent, level = neighbours(found, step.item_bytes, wires, ranks)
    if back:
        received, sent = sent, received
    seconds = halo_s(received, sent, level, step.item_bytes, wires, back)
    return PointToPoint(seconds, sent.messages, sent.items, found.through_items, level)


def halo_s(received: NeighbourSums, sent: NeighbourSums, level: Ints, item_bytes: Ints, wires: Wires,
           back: bool) -> Floats:
    """Seconds of the busiest part, with packing and unpacking (or, of an adjoint, adding)."""
    machine = wires.machine
    handling = machine.add_s_per_byte if back else machine.copy_s_per_byte
    handled = received.items * item_bytes * handling
    packed = sent.items * item_bytes * machine.copy_s_per_byte
    seconds = np.maximum(received.seconds, sent.seconds) + handled + packed
    most_bytes = np.maximum(received.items, sent.items) * item_bytes
    return seconds * wires.factor(level, Kind.HALO, "direct", most_bytes)


def neighbours(halo: Halo, item_bytes: Ints, wires: Wires, ranks: Ints) -> tuple[NeighbourSums, NeighbourSums, Ints]:
    """What the busiest part receives, what the busiest sends, and the level that is crossed.

    Each combination of sides (below, above or neither along every axis) is one neighbour.
    """
    received, sent = NeighbourSums(), NeighbourSums()
    for sides in itertools.product((KEPT, BELOW, ABOVE), repeat=len(halo.digits)):
        crossing = [(side, digit) for side, digit in zip(sides, halo.digits, strict=True) if side]
        if not crossing:
            continue
        level = functools.reduce(
            np.maximum, (_level(side, digit, wires, ranks) for side, digit in crossing))
        links = wires.links(level, partial(_most_flows, [digit for _, digit in crossing], ranks))
        for row, sums in ((RECEIVING, received), (SENDING, sent)):
            items = halo.rest
            count: Ints = 1
            for side, found in zip(sides, halo.axes, strict=True):
                items = items * found[..., row, side]
                count = count * found[..., row, 2 + side] if side else count
            happens = items > 0
            each_bytes = items * item_bytes / np.maximum(count, 1)
            sums.seconds = sums.seconds + np.where(happens, count * links.message_s(each_bytes), 0)
            sums.messages = sums.messages + np.where(happens, count, 0)
            sums.items = sums.items + items
    block: Ints = 1
    for digit in halo.digits:
        block = np.maximum(block, reach(digit))
    return received, sent, wires.index(block, ranks)


def _level(side: int, digit: Digit, wires: Wires, ranks: Ints) -> Ints:
    """The level crossed by a message to one side.

    The part below lies across a unit's boundary if any part does, the part above if all do.
    """
    parts = digit.size if side == BELOW else np.minimum(digit.size, 2)
    return wires.index(digit.stride * parts, ranks)


def _most_flows(digits: list[Digit], ranks: Ints, unit: Ints) -> Ints:
    """Messages to neighbours that leave a unit of ranks, along the axis with most of them."""
    unit = np.minimum(unit, ranks)
    return functools.reduce(np.maximum, (_flows(digit, unit) for digit in digits))


def _flows(digit: Digit, unit: Ints) -> Ints:
    """Messages to neighbours along a coordinate that leave a unit.

    Where several parts lie inside, those at its two ends send, each one way.
    """
    ways = np.where(np.greater(digit.size, 2), 2, 1)
    return np.where(digit.stride < unit, np.minimum(ways * digit.stride, unit), unit)
