"""Decides how many items and messages the busiest rank of a redistribution moves.

A few representative ranks stand for all. A rank receives the items that it needs and does not hold;
it sends the items that it holds and others need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from hpcpar.network.receptive_field import Granule, Relation, Same
from hpcpar.plan.axis import Axis, IntArray, all_intervals, tabulate
from hpcpar.plan.config import ONE, Flags, Ints, MeshAxis, Numbers
from hpcpar.plan.layout import Layout, boxes

#: Number of representative ranks.
REPRESENTATIVES = 8


@dataclass(frozen=True)
class Volumes:
    """Items and messages that the busiest ranks of a redistribution send and receive.

    `span` is the size of the aligned blocks of ranks that no message leaves.
    """

    sent: Numbers
    messages_sent: Numbers
    received: Numbers
    messages_received: Numbers
    span: Ints


def volumes(source: Layout, destination: Layout, ranks: int) -> Volumes:
    """The volumes of a movement between two layouts, in a job of `ranks` ranks.

    Every holder of a partial sum sends its part.
    """
    cases = max(np.ndim(source.config.ranks), np.ndim(destination.config.ranks))
    rank = np.minimum(source.config.first, destination.config.first) + representatives(ranks, cases)
    held, wanted = boxes(source, rank), boxes(destination, rank)
    kept = np.ones((), np.int64)
    for (h0, h1), (w0, w1), extent in zip(held, wanted, source.shape, strict=True):
        wraps = min(h0.min(), w0.min()) < 0 or np.any(np.maximum(h1, w1) > extent)
        kept = kept * sum(np.maximum(np.minimum(h1 + turn, w1) - np.maximum(h0 + turn, w0), 0)
                          for turn in ((-extent, 0, extent) if wraps else (0,)))  # see `Periodic`
    keeps = kept.min(axis=0) > 0
    # each destination receives from one of the ranks that hold the same values
    same_values = math.prod(d.size for d in source.copies)
    askers = math.prod(d.size for d in destination.spare) / same_values
    summands = math.prod(d.size for d in source.spare) // same_values
    sent, messages_sent = _crossing(source, held, destination, askers, kept, keeps)
    received, messages_received = _crossing(destination, wanted, source, summands, kept, keeps)
    # where nobody receives, nobody sends
    happens = received > 0
    return Volumes(np.where(happens, sent, 0), np.where(happens, messages_sent, 0),
                   received, messages_received, span(source, destination, ranks))


def representatives(ranks: int, dimensions: int) -> IntArray:
    """Representative ranks, [up to 8, ...]: all ranks if there are no more than that.

    Otherwise they are the last rank and one about two thirds in, of all ranks, of their first half,
    and of their first quarter; the last rank of the first eighth; and rank 0.
    """
    if ranks <= REPRESENTATIVES:
        chosen = list(range(ranks))
    else:
        parts = [max(ranks >> number, 1) for number in range(REPRESENTATIVES // 2)]
        chosen = [rank for part in parts for rank in (part - 1, 2 * part // 3)]
        chosen[-1] = 0
    return np.array(chosen).reshape(-1, *([1] * dimensions))


#: A start and a stop for each axis.
Intervals = list[tuple[IntArray, IntArray]]


def _crossing(mine: Layout, boxes: Intervals, other: Layout, times: Numbers, kept: Ints,
              keeps: Flags) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Items of a box in `mine` that cross to or from `other`, and messages, on the busiest rank.

    Parameters
    ----------
    times : float
        Number of ranks that request, or provide, each part of the other layout.
    kept : int
        Items that a rank has in both layouts.
    keeps : bool
        True where every rank keeps some items.
    """
    items: Numbers = 1.0
    cover: Numbers = times
    count: Numbers = times
    for (start, stop), a, b in zip(boxes, mine.axes, other.axes, strict=True):
        items = items * (stop - start)
        parts = other.degree(b)
        if not np.ndim(parts) and parts == 1:
            continue
        if not covers_once(b.relation):
            cover = cover * tabulate(partial(_cover, b), parts, np.float64)
        count = count * _touched(a, b, mine.degree(a), parts, (stop - start).max(axis=0))
    crossing = np.asarray(items * cover - kept).max(axis=0)
    return crossing, np.where(crossing > 0, np.maximum(1, count - keeps), 0)


def covers_once(relation: Relation) -> bool:
    """True if the parts of an axis do not overlap: each index belongs to one part."""
    return isinstance(relation, Same | Granule)


@lru_cache(maxsize=50_000)
def _cover(axis: Axis, parts: int) -> float:
    """Total size of the parts, relative to the axis."""
    start, stop = all_intervals(axis, parts)
    return float((stop - start).sum() / axis.extent)


def _touched(a: Axis, b: Axis, own_parts: Ints, parts: Ints, largest: Ints) -> NDArray[np.float64]:
    """Number of parts of axis `b` that overlap with the largest interval of axis `a`."""
    touched = np.ceil(largest * parts / np.maximum(b.extent, 1))
    if isinstance(a.relation, Same) and isinstance(b.relation, Same):
        # blocks nest: one cut refines the other
        inside = np.where(own_parts % parts == 0, 1, touched)
        touched = np.where(parts % own_parts == 0, parts // own_parts, inside)
    most = np.clip(largest, 1, parts) if covers_once(b.relation) else parts
    return np.clip(touched, 1, most)


# -- distance --------------------------------------------------------------------------------------
def span(source: Layout, destination: Layout, ranks: int) -> Ints:
    """Size of the aligned blocks of ranks that no message of a movement leaves.

    A block spans the slowest-varying mesh axis in which the layouts differ.
    """
    out: Ints = 1
    for a, b in zip(source.axes, destination.axes, strict=True):
        x, y = source.mesh_axes.get(a.name, ONE), destination.mesh_axes.get(b.name, ONE)
        reaches = np.maximum(reach(x), reach(y))
        if isinstance(a.relation, Same) and isinstance(b.relation, Same):
            alike = np.equal(x.stride, y.stride) & np.equal(x.size, y.size)
            reaches = np.where(alike, 1, reaches)
        out = np.maximum(out, reaches)
    for mesh_axis in (*source.spare, *destination.spare):
        out = np.maximum(out, reach(mesh_axis))
    same_ranks = (np.equal(source.config.first, destination.config.first)
                  & np.equal(source.config.ranks, destination.config.ranks))
    first, last = ends(source, destination)
    return np.minimum(np.where(same_ranks, out, last - first + 1), ranks)


def reach(mesh_axis: MeshAxis) -> Ints:
    """Size of the aligned blocks of ranks that hold all neighbors along a mesh axis."""
    return np.where(np.greater(mesh_axis.size, 1), mesh_axis.stride * mesh_axis.size, 1)


def ends(source: Layout, destination: Layout) -> tuple[Ints, Ints]:
    """The first and the last rank of two layouts."""
    a, b = source.config, destination.config
    last = np.maximum(a.first + a.ranks, b.first + b.ranks) - 1
    return np.minimum(a.first, b.first), last
