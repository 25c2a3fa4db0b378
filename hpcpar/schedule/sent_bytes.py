"""Messages and bytes that every rank sends in a step, for all ranks at once.

They equal `hpcpar.schedule.messages.counts`, which walks one rank's messages, and therefore the
trace of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.axis import Axis, all_intervals
from hpcpar.plan.boxes import block
from hpcpar.plan.config import ONE
from hpcpar.plan.rank_boxes import box_items, boxes, lives, part
from hpcpar.schedule.collective_algorithms import radices
from hpcpar.schedule.steps import Algorithm, Comm, Group, Kind, Schedule

Counts = NDArray[np.int64]
#: Rows of the matrix of all rank pairs that are computed at once, to bound memory.
ROWS = 256


@dataclass(frozen=True)
class Sent:
    """Messages and bytes that ranks send in one step.

    Attributes
    ----------
    messages, n_bytes : ndarray
        [ranks].
    """

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
    """True where the same coordinates cut the tensor before and after: as in a halo exchange."""
    pairs = zip(step.source.axes, step.destination.axes, strict=True)
    mesh_axes = ((step.source.mesh_axes.get(a.name, ONE),
                  step.destination.mesh_axes.get(b.name, ONE))
              for a, b in pairs)
    return not step.between and all(
        x.size == y.size and (x.size == 1 or x.stride == y.stride) for x, y in mesh_axes)


def _between_equal_cuts(step: Comm, ranks: int) -> tuple[Counts, Counts]:
    """Axis by axis: a part's overlaps with all wanted parts multiply over the axes."""
    rank = np.arange(ranks)
    here = lives(step.source, rank)
    messages, items, kept = (np.ones(ranks, np.int64) for _ in range(3))
    for held, wanted in zip(step.source.axes, step.destination.axes, strict=True):
        counts, sums, own = _overlaps(held, wanted, int(step.source.degree(held)))
        at = np.where(here, part(step.source, held, rank), 0)
        messages, items, kept = messages * counts[at], items * sums[at], kept * own[at]
    return np.where(here, messages - (kept > 0), 0), np.where(here, items - kept, 0)


@lru_cache(maxsize=10_000)
def _overlaps(held: Axis, wanted: Axis, parts: int) -> tuple[Counts, Counts, Counts]:
    """For each held part: wanted parts that meet it, shared indices, its own of them."""
    (h0, h1), (w0, w1) = all_intervals(held, parts), all_intervals(wanted, parts)
    common = np.minimum(h1[:, None], w1) - np.maximum(h0[:, None], w0)
    common = np.maximum(common, 0)
    return np.count_nonzero(common, axis=1), common.sum(axis=1), np.diagonal(common).copy()


def _between_all_pairs(step: Comm, ranks: int) -> tuple[Counts, Counts]:
    """All pairs of ranks of one replica class: a rank sends its box's overlap with every other."""
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
            common = np.ones((len(rows), len(members)), np.int64)
            for (h0, h1), (w0, w1) in zip(held, wanted, strict=True):
                along = (np.minimum(h1[rows, None], w1[members])
                         - np.maximum(h0[rows, None], w0[members]))
                common *= np.maximum(along, 0)
            common[rows[:, None] == members] = 0
            messages[rows], items[rows] = np.count_nonzero(common, axis=1), common.sum(axis=1)
    return messages, items


# -- collectives -----------------------------------------------------------------------------------
def _collective(step: Comm, group: Group, ranks: int) -> tuple[Counts, Counts]:
    """Groups with equal block sizes send alike, so each distinct row of sizes is counted once."""
    messages, items = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    rank = np.arange(ranks)
    rank = rank[lives(step.source, rank)]
    position, base = _positions(group, rank)
    blocks = step.source if step.kind in (Kind.ALLGATHER, Kind.REDUCE) else step.destination
    bases, group_of = np.unique(base, return_inverse=True)
    members = np.array(group.members(group.first)) + bases[:, None]
    sizes = box_items(blocks, members.ravel()).reshape(members.shape)
    rows, row_of = np.unique(sizes, axis=0, return_inverse=True)
    for i, row in enumerate(rows):
        member_messages, member_items = _of_members(
            step.kind, step.algorithm, tuple(row.tolist()), step.segments, step.root, step.inner)
        mine = np.ravel(row_of)[group_of] == i
        messages[rank[mine]] = member_messages[position[mine]]
        items[rank[mine]] = member_items[position[mine]]
    return messages, items


def _positions(group: Group, rank: Counts) -> tuple[Counts, Counts]:
    """Position of each rank in its group, and the offset of its group's first member."""
    position: Counts = np.zeros(len(rank), np.int64)
    base: Counts = rank - group.first
    for mesh_axis in sorted(group.mesh_axes, key=lambda d: -int(d.stride)):
        coordinate = np.asarray(mesh_axis.of(rank - group.first))
        position = position * int(mesh_axis.size) + coordinate
        base = base - coordinate * int(mesh_axis.stride)
    return position, base


@lru_cache(maxsize=2_000)
def _of_members(kind: Kind, algorithm: Algorithm, sizes: tuple[int, ...], segments: int, root: int,
                inner: int = 1) -> tuple[Counts, Counts]:
    """Messages and items that each member of a group sends, by position.

    Parameters
    ----------
    sizes : tuple of int
        Items of each member's block; the whole buffer's where blocks are not spread.
    """
    p, n = len(sizes), np.array(sizes, np.int64)
    none = np.zeros(p, np.int64)
    if p == 1:
        return none, none
    if algorithm is Algorithm.MPI:
        return none + 1, n if kind is not Kind.REDUCE_SCATTER else none + n.sum()
    if kind is Kind.REDUCE or kind is Kind.BROADCAST:
        at = (np.arange(p) - root) % p
        pieces = np.minimum(n, segments) if algorithm is Algorithm.RING else np.minimum(n, 1)
        sends: Counts
        if kind is Kind.REDUCE:
            sends = np.minimum(at, 1)
        elif algorithm is Algorithm.RING:
            sends = np.minimum(p - 1 - at, 1)
        elif algorithm is Algorithm.DIRECT:
            sends = np.where(at == 0, p - 1, 0)
        else:
            distances = 1 << np.arange((p - 1).bit_length())[:, None]
            sends = ((at % (2 * distances) == 0) & (at + distances < p)).sum(axis=0)
        return sends * pieces, sends * n
    if algorithm is Algorithm.RING:
        return _ring(kind, n, segments)
    if algorithm is Algorithm.HALVING:
        return _halving(kind, n, inner)
    assert algorithm is Algorithm.DOUBLING
    # ranks beyond a power of two send to the next one, which sends the sum back
    power = 1 << (p.bit_length() - 1)
    rounds = np.full(p, power.bit_length() - 1)
    rounds[:2 * (p - power):2] = 1
    rounds[1:2 * (p - power):2] += 1
    sends = rounds * (n > 0)
    return sends, sends * n


def _ring(kind: Kind, sizes: Counts, segments: int) -> tuple[Counts, Counts]:
    """A member of a ring passes on every block but one; in an allreduce twice."""
    if kind is Kind.ALLREDUCE:
        n, p = int(sizes[0]), len(sizes)
        sizes = np.diff([block(n, p, i)[0] for i in range(p + 1)])
        left_out: tuple[Counts, ...] = (np.roll(sizes, -1), np.roll(sizes, -2))
    elif kind is Kind.ALLGATHER:
        left_out = (np.roll(sizes, -1),)
    else:
        left_out = (sizes,)
    items = len(left_out) * sizes.sum() - sum(left_out)
    pieces = np.minimum(sizes, segments)
    messages = len(left_out) * pieces.sum() - sum(np.minimum(n, segments) for n in left_out)
    return messages, items


def _halving(kind: Kind, sizes: Counts, inner: int) -> tuple[Counts, Counts]:
    """In each stage a member passes on what it has gathered and sums what it will not keep; parts
    that pass the end of an allreduce's buffer are two messages.
    """
    p, stages = len(sizes), radices(len(sizes), inner)
    reduces = kind is Kind.ALLREDUCE
    if reduces:
        ends = np.array([block(int(sizes[0]), p, i)[1] for i in range(p)])
        sizes = np.diff(ends, prepend=0).reshape(stages).T.ravel()
    messages, items = np.zeros(p, np.int64), np.zeros(p, np.int64)
    for size in reversed(stages):
        # sums of the blocks of each member of the stage that were gathered in later ones
        parts = sizes.reshape(size, -1)
        upto = np.concatenate([np.zeros_like(parts[:1]), parts.cumsum(axis=0)])
        own = np.arange(size)
        distance = 1
        while distance < size:
            count = min(distance, size - distance)
            firsts = {Kind.ALLGATHER: (own,), Kind.REDUCE_SCATTER: ((own + distance) % size,)}
            for first in firsts.get(kind, (own, (own + distance) % size)):
                stop = first + count
                near = upto[np.minimum(stop, size)] - upto[first]
                far = upto[np.maximum(stop - size, 0)]
                pieces = np.sign(near) + np.sign(far)
                items += np.resize(near + far, p)
                messages += np.resize(pieces if reduces else np.sign(pieces), p)
            distance *= 2
        sizes = parts.sum(axis=0)
    return messages, items
