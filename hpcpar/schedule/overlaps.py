"""Decides which ranks exchange how many items between two layouts, by overlaps of their boxes.

`hpcpar.schedule.halo_exchange` has the boxes themselves, for a single rank.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.axis import TURNS, Axis, IntArray, all_intervals
from hpcpar.plan.layout import lives, part
from hpcpar.schedule.steps import Comm


class _Along(NamedTuple):
    """Overlaps along one axis.

    Attributes
    ----------
    held, wanted : ndarray
        [ranks] part of the source and of the destination that each rank has.
    items : ndarray
        [turns, source parts, destination parts] items in common, for each turn around the axis.
    """

    held: IntArray
    wanted: IntArray
    items: IntArray


def overlaps(step: Comm, ranks: int) -> tuple[IntArray, IntArray, IntArray]:
    """The messages of a halo exchange or a redistribution, sorted by sender and receiver.

    Returns
    -------
    senders, receivers, items : ndarray
        [messages]
    """
    rank = np.arange(ranks)
    source, destination = step.source, step.destination
    holds, wants = lives(source, rank), lives(destination, rank)
    along = [_Along(np.where(holds, part(source, a, rank), 0),
                    np.where(wants, part(destination, b, rank), 0),
                    _common(a, b, int(source.degree(a)), int(destination.degree(b))))
             for a, b in zip(source.axes, destination.axes, strict=True)]
    replica = np.zeros(ranks, np.int64)
    for mesh_axis in source.copies:
        replica = replica * mesh_axis.size + mesh_axis.of(rank - source.config.first)
    same = _Along(replica, replica, np.eye(int(replica.max()) + 1, dtype=np.int64)[None])
    sender, receiver = _candidates(min((*along, same), key=_density), holds, wants)
    kept = (sender != receiver) & (replica[sender] == replica[receiver])
    sender, receiver = sender[kept], receiver[kept]
    by_axis = [a.items[:, a.held[sender], a.wanted[receiver]] for a in along]
    rows = []
    for turns in itertools.product(*(np.flatnonzero(items.any(axis=1)) for items in by_axis)):
        common = np.ones_like(sender)
        for items, turn in zip(by_axis, turns, strict=True):
            common = common * items[turn]
        some = common > 0
        rows.append(np.stack([sender[some], receiver[some], common[some]]))
    if not rows:
        return (np.zeros(0, np.int64),) * 3
    every = np.concatenate(rows, axis=1)
    # pieces between the same ranks stay in the order of their turns
    senders, receivers, items = every[:, np.lexsort(every[1::-1])]
    return senders, receivers, items


@lru_cache(maxsize=10_000)
def _common(held: Axis, wanted: Axis, held_parts: int, wanted_parts: int) -> IntArray:
    """Items that parts of two layouts have in common, for each turn: [3, parts, parts]."""
    (h0, h1), (w0, w1) = all_intervals(held, held_parts), all_intervals(wanted, wanted_parts)
    turn = TURNS[:, :, None] * held.extent
    return np.maximum(0, np.minimum(h1[:, None] + turn, w1) - np.maximum(h0[:, None] + turn, w0))


def _density(along: _Along) -> float:
    return float(np.mean(along.items.any(axis=0)))


def _candidates(along: _Along, holds: NDArray[np.bool_], wants: NDArray[np.bool_]
                ) -> tuple[IntArray, IntArray]:
    """All senders and receivers whose parts overlap along one axis."""
    overlap: NDArray[np.bool_] = np.asarray(along.items.any(axis=0))
    senders = np.flatnonzero(holds)
    # the ranks that want each part, and for each sender the parts that it overlaps
    receivers = np.flatnonzero(wants)
    receivers = receivers[np.argsort(along.wanted[receivers], kind="stable")]
    counts = np.bincount(along.wanted[receivers], minlength=overlap.shape[1])
    first = np.cumsum(counts) - counts
    row, wanted = np.nonzero(overlap[along.held[senders]])
    each = counts[wanted]
    place = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    return (np.repeat(senders[row], each), receivers[np.repeat(first[wanted], each) + place])
