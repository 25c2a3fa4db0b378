"""Messages and bytes that every rank sends in a step, for all ranks at once.

They equal `hpcpar.schedule.messages.counts`, which walks one rank's messages, and so the trace of a
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.axis import TURNS, Axis, all_intervals
from hpcpar.plan.config import ONE
from hpcpar.plan.rank_boxes import boxes, lives, part
from hpcpar.schedule.algorithms.base import Collective
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Comm, Group, Schedule
from hpcpar.schedule.waves import collectives

Counts = NDArray[np.int64]
#: Rows of the matrix of all rank pairs to compute at once; this bounds memory.
ROWS = 256


@dataclass(frozen=True)
class Sent:
    """Messages and bytes that each rank sends in one step: [ranks]."""

    messages: Counts
    n_bytes: Counts


def sent_bytes(schedule: Schedule) -> Counts:
    """Bytes that each rank sends in an iteration: [ranks]."""
    total = np.zeros(schedule.ranks, np.int64)
    for step in schedule.comms:
        total += sent(step, schedule.ranks).n_bytes
    return total


def sent(step: Comm, ranks: int) -> Sent:
    """Messages and bytes that each of `ranks` ranks sends in a step."""
    if step.group is not None:
        messages, items = _collective(step, step.group, ranks)
    elif _equal_cuts(step):
        messages, items = _between_equal_cuts(step, ranks)
    else:
        messages, items = _between_all_pairs(step, ranks)
    return Sent(messages, items * step.item_bytes)


# -- point to point --------------------------------------------------------------------------------
def _equal_cuts(step: Comm) -> bool:
    """True where the same coordinates cut the tensor before and after, as in a halo exchange."""
    pairs = zip(step.source.axes, step.destination.axes, strict=True)
    mesh_axes = ((step.source.mesh_axes.get(a.name, ONE),
                  step.destination.mesh_axes.get(b.name, ONE))
              for a, b in pairs)
    return not step.between and all(
        x.size == y.size and (x.size == 1 or x.stride == y.stride) for x, y in mesh_axes)


def _between_equal_cuts(step: Comm, ranks: int) -> tuple[Counts, Counts]:
    """Counts from the overlaps along each axis, which multiply over the axes."""
    rank = np.arange(ranks)
    holds = lives(step.source, rank)
    pieces = np.ones((2, 2, ranks), np.int64)
    for held, wanted in zip(step.source.axes, step.destination.axes, strict=True):
        at = np.where(holds, part(step.source, held, rank), 0)
        pieces *= _overlaps(held, wanted, int(step.source.degree(held)))[..., at]
    messages, items = pieces[0] - pieces[1]
    return np.where(holds, messages, 0), np.where(holds, items, 0)


@lru_cache(maxsize=10_000)
def _overlaps(held: Axis, wanted: Axis, parts: int) -> Counts:
    """Overlaps of held parts: [with all or own wanted part, pieces or indices, parts]."""
    (h0, h1), (w0, w1) = all_intervals(held, parts), all_intervals(wanted, parts)
    out = np.zeros((2, 2, parts), np.int64)
    for turn in (TURNS * held.extent).ravel():
        common = np.minimum(h1[:, None] + turn, w1) - np.maximum(h0[:, None] + turn, w0)
        common = np.maximum(common, 0)
        for i, overlap in enumerate((common, np.diagonal(common)[:, None])):
            out[i] += np.count_nonzero(overlap, axis=1), overlap.sum(axis=1)
    return out


def _between_all_pairs(step: Comm, ranks: int) -> tuple[Counts, Counts]:
    """Counts from all pairs of ranks with one replica index."""
    rank = np.arange(ranks)
    messages, items = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    held, wanted = boxes(step.source, rank), boxes(step.destination, rank)
    replica = np.zeros(ranks, np.int64)
    for mesh_axis in step.source.copies:
        replica = replica * mesh_axis.size + mesh_axis.of(rank - step.source.config.first)
    for number in np.unique(replica):
        members = np.flatnonzero(replica == number)
        for begin in range(0, len(members), ROWS):
            rows = members[begin:begin + ROWS]
            pieces = np.ones((2, len(rows), len(members)), np.int64)
            for (h0, h1), (w0, w1), extent in zip(held, wanted, step.source.shape, strict=True):
                turns = TURNS[:, :, None] * extent
                along = (np.minimum(h1[rows, None] + turns, w1[members])
                         - np.maximum(h0[rows, None] + turns, w0[members]))
                pieces *= np.count_nonzero(along > 0, axis=0), np.maximum(along, 0).sum(axis=0)
            pieces[:, rows[:, None] == members] = 0
            messages[rows], items[rows] = pieces.sum(axis=2)
    return messages, items


# -- collectives -----------------------------------------------------------------------------------
def _collective(step: Comm, group: Group, ranks: int) -> tuple[Counts, Counts]:
    """Counts once per distinct collective: groups with equal block sizes send the same."""
    messages, items = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for collective, members in collectives(step, group, ranks):
        messages[members], items[members] = _of_members(step.algorithm, collective)
    return messages, items


@lru_cache(maxsize=2_000)
def _of_members(algorithm: str, collective: Collective) -> tuple[Counts, Counts]:
    """`Algorithm.sent`, cached."""
    return ALGORITHMS[algorithm].sent(collective)
