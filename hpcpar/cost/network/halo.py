"""Halos: messages to neighbours along the cut axes of an image, in seconds and items of the busiest
rank, without walking ranks.

A halo is the same at every rank but for where its part lies along each axis, so the part that
receives most decides, found once for each degree of each axis.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from hpcpar.cost.network.common import reach
from hpcpar.cost.network.contention import Wires
from hpcpar.cost.network.paired import halo_of
from hpcpar.cost.network.redistribution import Direct
from hpcpar.cost.network.sides import Halo
from hpcpar.plan.config import Digit, Ints
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.steps import Kind


def through_items(halo: Halo) -> Any:
    """Items that the part through whose buffers most goes receives and sends."""
    boxes: list[Any] = [1, 1, 1]  # kept, with what is received, with what is sent
    for found in halo.found:
        kept, received, sent = (found[..., 2, i] for i in range(3))
        boxes = [box * items for box, items in zip(boxes, (kept, kept + received, kept + sent),
                                                   strict=True)]
    return halo.rest * (boxes[1] + boxes[2] - 2 * boxes[0])


#: Seconds, messages and items.
Sums = list[Any]


def halo(step: Move, wires: Wires, ranks: Any) -> Direct:
    """A halo exchange, or its adjoint, whose parts send back what they received."""
    back = step.pattern.adds
    own, need = (step.wanter, step.holder) if back else (step.holder, step.wanter)
    into, out, level = wires.once(
        ("halo", step.item_bytes), own, need, lambda: neighbours(halo_of(own, need), step.item_bytes, wires, ranks))
    if back:
        into, out = out, into
    return Direct(halo_s(into, out, level, step.item_bytes, wires, back), out[1], out[2],
                  through_items(halo_of(own, need)), level)


def halo_s(into: Sums, out: Sums, level: Any, item_bytes: Ints, wires: Wires, back: Any) -> Any:
    """Seconds of the busiest part, packing and unpacking (or, of an adjoint, adding) included."""
    machine = wires.machine
    handled = into[2] * item_bytes * np.where(back, machine.add_s_per_byte, machine.copy_s_per_byte)
    seconds = np.maximum(into[0], out[0]) + handled + out[2] * item_bytes * machine.copy_s_per_byte
    return seconds * wires.factor(level, Kind.HALO, "direct",
                                  np.maximum(into[2], out[2]) * item_bytes)


def neighbours(halo: Halo, item_bytes: Ints, wires: Wires, ranks: Any) -> tuple[Sums, Sums, Any]:
    """What the busiest part receives and what the busiest sends, over every combination of sides;
    and the level that is crossed.
    """
    cuts = list(zip(halo.found, halo.digits, strict=True))
    some = [[bool(found[..., side].any()) for side in (0, 1, 2)] for found in halo.found]
    # below lies across a unit's boundary if any part does, above if all do
    levels = [(0, wires.index(d.stride * d.size, ranks),
               wires.index(d.stride * np.minimum(d.size, 2), ranks)) for d in halo.digits]
    known: dict[Any, Any] = {}
    into: Sums = [0.0, 0, 0]
    out: Sums = [0.0, 0, 0]
    for place in itertools.product((0, 1, 2), repeat=len(cuts)):
        crossing = [digit for side, digit in zip(place, halo.digits, strict=True) if side]
        if not crossing or not all(there[side] for side, there in zip(place, some, strict=True)
                                   if side):
            continue
        level = functools.reduce(np.maximum,
                                 (each[side] for side, each in zip(place, levels, strict=True)
                                  if side))

        def flows(unit: Any, crossing: list[Digit] = crossing) -> Any:
            for digit in crossing:
                if (id(digit), unit) not in known:
                    known[id(digit), unit] = _flows(digit, np.minimum(unit, ranks))
            return functools.reduce(np.maximum, (known[id(digit), unit] for digit in crossing))

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
    """Messages to neighbours along a coordinate that leave a unit: of several parts inside, those
    at its two ends send, each one way.
    """
    ways = np.where(np.greater(digit.size, 2), 2, 1)
    return np.where(digit.stride < unit, np.minimum(ways * digit.stride, unit), unit)
