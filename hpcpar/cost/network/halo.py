"""Decides how long a halo exchange takes: messages to neighbors along the cut axes of an image.

The halo of a rank depends only on the position of its part along each axis. The busiest part of
each axis decides; it is computed once for each number of parts.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.cost.network.redistribution import PointToPoint
from hpcpar.cost.network.volumes import reach
from hpcpar.network.receptive_field import Sliding
from hpcpar.plan.axis import TURNS, Axis, IntArray, all_intervals, tabulate
from hpcpar.plan.config import Floats, Ints, MeshAxis, Numbers
from hpcpar.plan.layout import Layout
from hpcpar.schedule.steps import Comm, Kind

#: Columns of `axis_halo`; numbers of messages below and above follow.
KEPT, BELOW, ABOVE = range(3)
#: Rows of `axis_halo`.
RECEIVING, SENDING, BUSIEST, HOLDING = range(4)


@dataclass(frozen=True)
class Halo:
    """The movement of a halo exchange, or of its adjoint.

    Attributes
    ----------
    rest : int
        Items of a box over the axes without a halo.
    axes : list of ndarray
        `axis_halo` of each axis with a halo: [..., 4, 5].
    mesh_axes : list of MeshAxis
        The mesh axes that cut the axes with a halo.
    """

    rest: Ints
    axes: list[IntArray]
    mesh_axes: list[MeshAxis]

    @property
    def through_items(self) -> Numbers:
        """Upper bound of the items that a part receives and sends."""
        most: Numbers = 0
        for rows in itertools.product((BUSIEST, HOLDING), repeat=len(self.axes)):
            part = [x[..., row, :] for x, row in zip(self.axes, rows, strict=True)]
            kept = math.prod(x[..., KEPT] for x in part)
            received = math.prod(x[..., KEPT] + x[..., BELOW] for x in part)
            sent = math.prod(x[..., KEPT] + x[..., ABOVE] for x in part)
            most = np.maximum(most, self.rest * (received + sent - 2 * kept))
        return most


def halo_of(own: Layout, need: Layout) -> Halo:
    """The halo between the boxes that ranks own and those that they need, for both directions."""
    rest: Ints = 1
    out = Halo(1, [], [])
    for a, b, largest in zip(own.axes, need.axes, need.largest, strict=True):
        degree = need.degree(b)
        if isinstance(b.relation, Sliding) and np.any(np.greater(degree, 1)):
            out.axes.append(tabulate(partial(axis_halo, a, b), degree, np.int64))
            out.mesh_axes.append(need.mesh_axes[b.name])
        else:
            rest = rest * largest
    return Halo(rest, out.axes, out.mesh_axes)


@lru_cache(maxsize=50_000)
def axis_halo(own: Axis, need: Axis, parts: int) -> IntArray:
    """Items that the busiest parts move along an axis.

    Returns
    -------
    ndarray
        [4, 5]. Row RECEIVING describes the part that receives most, SENDING the part that sends
        most: items kept, items exchanged with parts below and above, messages below and above. Row
        BUSIEST describes the part that receives and sends most, HOLDING the part that keeps and
        sends most: items kept, received and sent, 0, 0.
    """
    (own0, own1), (need0, need1) = all_intervals(own, parts), all_intervals(need, parts)
    turns = TURNS * own.extent  # on a periodic axis the first and the last part are neighbors
    kept = np.maximum(0, np.minimum(own1, need1 + turns)
                      - np.maximum(own0, need0 + turns)).sum(axis=0)
    # number of parts that need each index, summed over the indices before
    starts, stops = (np.bincount(np.clip(end + turns, 0, own.extent).ravel(),
                                 minlength=own.extent + 1) for end in (need0, need1))
    needed_before = np.concatenate(([0], np.cumsum(np.cumsum(starts - stops))))
    received = need1 - need0 - kept
    sent = needed_before[own1] - needed_before[own0] - kept
    out = np.zeros((4, 5), np.int64)
    for row, moved, mine, theirs in (
        (RECEIVING, received, (need0, need1), (own0, own1)),
        (SENDING, sent, (own0, own1), (need0, need1)),
    ):
        part = int(np.argmax(moved))
        common = np.maximum(0, np.minimum(mine[1][part], theirs[1] + turns)
                            - np.maximum(mine[0][part], theirs[0] + turns))
        common[:, part] = 0
        below, above = np.split(common.ravel(), [parts + part])
        out[row] = (kept[part], below.sum(), above.sum(),
                    np.count_nonzero(below), np.count_nonzero(above))
    orders = {BUSIEST: (kept, received + sent), HOLDING: (received, kept + sent)}
    for row, order in orders.items():
        part = int(np.lexsort(order)[-1])
        out[row, :3] = kept[part], received[part], sent[part]
    return out


@dataclass
class NeighborSums:
    """Traffic of a part with all of its neighbors."""

    seconds: Floats = 0.0
    messages: Ints = 0
    items: Ints = 0


def halo(step: Comm, network_model: NetworkModel, ranks: int) -> PointToPoint:
    """The price of a halo exchange, or of its adjoint, in which each part returns its halo."""
    back = step.pattern.adds
    own, need = (step.destination, step.source) if back else (step.source, step.destination)
    movement = halo_of(own, need)
    received, sent, level = neighbors(movement, step.item_bytes, network_model, ranks)
    if back:
        received, sent = sent, received
    seconds = halo_s(received, sent, level, step.item_bytes, network_model, back)
    return PointToPoint(seconds, sent.messages, sent.items, movement.through_items, level)


def halo_s(received: NeighborSums, sent: NeighborSums, level: Ints, item_bytes: Ints,
           network_model: NetworkModel, back: bool) -> Floats:
    """Seconds of the busiest part, including packing and unpacking (adding in an adjoint)."""
    machine = network_model.machine
    handling = machine.add_s_per_byte if back else machine.copy_s_per_byte
    handled = received.items * item_bytes * handling
    packed = sent.items * item_bytes * machine.copy_s_per_byte
    seconds = np.maximum(received.seconds, sent.seconds) + handled + packed
    most_bytes = np.maximum(received.items, sent.items) * item_bytes
    return seconds * network_model.factor(level, Kind.HALO, "direct", most_bytes)


def neighbors(halo: Halo, item_bytes: Ints, network_model: NetworkModel,
               ranks: int) -> tuple[NeighborSums, NeighborSums, Ints]:
    """Traffic of the busiest receiver and of the busiest sender, and the level that they cross.

    Each combination of sides (below, above or neither along every axis) is one neighbor.
    """
    received, sent = NeighborSums(), NeighborSums()
    for sides in itertools.product((KEPT, BELOW, ABOVE), repeat=len(halo.mesh_axes)):
        crossing = [(side, mesh_axis) for side, mesh_axis in zip(sides, halo.mesh_axes, strict=True)
                    if side]
        if not crossing:
            continue
        level = functools.reduce(
            np.maximum,
            (_level(side, mesh_axis, network_model, ranks) for side, mesh_axis in crossing))
        links = network_model.links(level,
                                    partial(_most_flows, [mesh_axis for _, mesh_axis in crossing],
                                            ranks))
        for row, sums in ((RECEIVING, received), (SENDING, sent)):
            items = halo.rest
            count: Ints = 1
            for side, axis in zip(sides, halo.axes, strict=True):
                items = items * axis[..., row, side]
                count = count * axis[..., row, 2 + side] if side else count
            happens = items > 0
            message_s = links.message_s(items * item_bytes / np.maximum(count, 1))
            sums.seconds = sums.seconds + np.where(happens, count * message_s, 0)
            sums.messages = sums.messages + np.where(happens, count, 0)
            sums.items = sums.items + items
    block: Ints = 1
    for mesh_axis in halo.mesh_axes:
        block = np.maximum(block, reach(mesh_axis))
    return received, sent, network_model.index(block, ranks)


def _level(side: int, mesh_axis: MeshAxis, network_model: NetworkModel, ranks: int) -> Ints:
    """The level that a message to one side crosses.

    Below, it is the outermost level that the message of any part crosses; above, the innermost.
    """
    parts = mesh_axis.size if side == BELOW else np.minimum(mesh_axis.size, 2)
    return network_model.index(mesh_axis.stride * parts, ranks)


def _most_flows(mesh_axes: list[MeshAxis], ranks: int, unit: Ints) -> Ints:
    """Messages that leave a unit of ranks, along the axis with the most."""
    unit = np.minimum(unit, ranks)
    return functools.reduce(np.maximum, (_flows(mesh_axis, unit) for mesh_axis in mesh_axes))


def _flows(mesh_axis: MeshAxis, unit: Ints) -> Ints:
    """Messages to neighbors along a mesh axis that leave a unit.

    If a unit contains several parts, only the two at its ends send out of it, in one direction
    each.
    """
    ways = np.where(np.greater(mesh_axis.size, 2), 2, 1)
    return np.where(mesh_axis.stride < unit, np.minimum(ways * mesh_axis.stride, unit), unit)
