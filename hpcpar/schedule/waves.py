"""The messages of a communication step between all of its ranks, in waves.

A wave holds one round of every rank. `hpcpar.schedule.messages.exchange` has the rounds of a single
rank; here those of all ranks are put side by side, and every send meets its receive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcpar.errors import RunError
from hpcpar.plan.axis import IntArray
from hpcpar.plan.rank_boxes import box_items, lives
from hpcpar.schedule.collective_algorithms import Round, collective
from hpcpar.schedule.halo_exchange import point_to_point
from hpcpar.schedule.steps import Algorithm, Comm, Group, Kind


@dataclass(frozen=True, eq=False)
class Pairs:
    """Who sends to whom, sorted by receiver: [messages] ranks.

    Attributes
    ----------
    turn : ndarray
        Place of the message among those of its sender.
    """

    senders: IntArray
    receivers: IntArray
    turn: IntArray


@dataclass(frozen=True)
class Wave:
    """Messages that travel together: [messages] items, 0 where nothing is sent.

    Attributes
    ----------
    adds : ndarray
        Received items are added to what is there.
    """

    pairs: Pairs
    items: IntArray
    adds: IntArray


def is_ring(step: Comm) -> bool:
    """True where blocks travel around a ring (a reduction or broadcast goes along a chain)."""
    return step.algorithm is Algorithm.RING and step.kind not in (Kind.REDUCE, Kind.BROADCAST)


def waves(step: Comm, ranks: int) -> Iterator[Wave]:
    """The waves of a step among `ranks` ranks, in order; none of the MPI library's collectives.

    Raises
    ------
    RunError
        A send has no receive, or a receive no send.
    """
    if step.group is None:
        rounds = {rank: list(point_to_point(step, rank).rounds)
                  for rank in range(ranks) if step.concerns(rank)}
        yield from _matched(_name(step), _Messages.of(rounds))
        return
    if step.algorithm is Algorithm.MPI:
        return
    members, sizes = groups(step, step.group, ranks)
    if is_ring(step):
        yield from _ring(step, members, sizes)
        return
    found = []
    alike, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, row in enumerate(alike):  # groups with equal blocks send alike
        blocks = tuple(row.tolist())
        one = _Messages.of({me: collective(step.kind, step.algorithm, blocks, me, step.segments,
                                           step.inner, step.root)
                            for me in range(len(row))})
        found += [one.between(group) for group in members[np.ravel(which) == i]]
    yield from _matched(_name(step), _Messages.joined(found))


@lru_cache(maxsize=1000)
def member_waves(kind: Kind, algorithm: Algorithm, p: int, root: int) -> tuple[Pairs, ...]:
    """Who sends to whom in a group of `p` members, whose messages are all of one size."""
    every = {me: collective(kind, algorithm, (1,) * p, me, 1, 1, root) for me in range(p)}
    return tuple(wave.pairs for wave in _matched(kind.value, _Messages.of(every)))


def groups(step: Comm, group: Group, ranks: int) -> tuple[IntArray, IntArray]:
    """Ranks of every group and items of their blocks, [groups, members].

    A block is the whole buffer in an allreduce, a reduction and a broadcast.
    """
    rank = np.arange(ranks)
    rank = rank[lives(step.source, rank)]
    base = rank - group.first
    for mesh_axis in group.mesh_axes:
        base = base - np.asarray(mesh_axis.of(rank - group.first)) * int(mesh_axis.stride)
    members = np.array(group.members(group.first)) + np.unique(base)[:, None]
    parts = step.destination if step.kind is Kind.REDUCE_SCATTER else step.source
    return members, box_items(parts, members.ravel()).reshape(members.shape)


def _ring(step: Comm, members: IntArray, sizes: IntArray) -> Iterator[Wave]:
    """`collective` of all members of a ring: in round t a member passes on the block t before its
    own, in a reduce-scatter that before it.
    """
    p, reduces = members.shape[1], step.kind is not Kind.ALLGATHER
    both = step.kind is Kind.ALLREDUCE
    if both:
        sizes = np.concatenate([_part_items(sizes[:, :1], p, i) for i in range(p)], axis=1)
    receivers = np.roll(members, -1, axis=1).ravel()
    order = np.argsort(receivers)
    pairs = Pairs(members.ravel()[order], receivers[order], np.zeros_like(order))
    me, first = np.arange(p), int(step.kind is Kind.REDUCE_SCATTER)
    for t in range(2 * (p - 1) if both else p - 1):
        blocks = sizes[:, (me - t - first) % p].ravel()[order]
        adds = np.full(len(order), reduces and t < p - 1)
        for s in range(step.segments):
            yield Wave(pairs, _part_items(blocks, step.segments, s), adds)


def _part_items(items: IntArray, parts: int, index: int) -> IntArray:
    """Items of a part of each block (`hpcpar.plan.boxes.block`)."""
    return (index + 1) * items // parts - index * items // parts


@dataclass(frozen=True)
class _Messages:
    """Sends and receives of many ranks: columns rank, peer, round, turn, items, adds."""

    sends: IntArray
    receives: IntArray

    @classmethod
    def of(cls, rounds: dict[int, list[Round]]) -> _Messages:
        """Those of the rounds of each rank (or member)."""
        sends = [(rank, m.peer, i, turn, m.stop - m.start, 0)
                 for rank, each in rounds.items() for i, r in enumerate(each)
                 for turn, m in enumerate(r.sends)]
        receives = [(rank, m.peer, i, turn, m.stop - m.start, r.reduce)
                    for rank, each in rounds.items() for i, r in enumerate(each)
                    for turn, m in enumerate(r.recvs)]
        return cls(*(np.array(rows, np.int64).reshape(-1, 6) for rows in (sends, receives)))

    @classmethod
    def joined(cls, each: list[_Messages]) -> _Messages:
        """Those of several groups together."""
        return cls(np.concatenate([m.sends for m in each]),
                   np.concatenate([m.receives for m in each]))

    def between(self, members: IntArray) -> _Messages:
        """With ranks in place of the members of a group."""
        out = _Messages(self.sends.copy(), self.receives.copy())
        for rows in (out.sends, out.receives):
            rows[:, :2] = members[rows[:, :2]]
        return out


def _name(step: Comm) -> str:
    return f"step {step.index} ({step.label})"


def _matched(name: str, messages: _Messages) -> Iterator[Wave]:
    """Messages between the same ranks meet in their order; those of a wave do not wait for each
    other.
    """
    sends, receives = messages.sends, messages.receives
    sends = sends[np.lexsort(sends[:, [3, 2, 0, 1]].T)]
    receives = receives[np.lexsort(receives[:, [3, 2, 1, 0]].T)]
    ends = sends[:, [0, 1, 4]], receives[:, [1, 0, 4]]
    if not np.array_equal(*ends):
        raise _unmatched(name, *ends)
    if not len(sends):
        return
    # a round's wave comes after that of the round before, and is that of its partners' rounds
    count = 1 + max(int(sends[:, 2].max()), int(receives[:, 2].max()))
    ranks, places = np.unique(np.concatenate([sends[:, 0], receives[:, 0]]), return_inverse=True)
    own, other = np.split(places, 2)
    number = np.arange(count)
    wave = np.tile(number, (len(ranks), 1))
    while True:
        later = wave.copy()
        at, there = (own, sends[:, 2]), (other, receives[:, 2])
        together = np.maximum(later[at], later[there])
        np.maximum.at(later, at, together)
        np.maximum.at(later, there, together)
        later = np.maximum.accumulate(later - number, axis=1) + number
        if np.array_equal(later, wave):
            break
        wave = later
    of_message = wave[own, sends[:, 2]]
    for w in np.unique(of_message):
        here = of_message == w
        some = sends[here]
        yield Wave(Pairs(some[:, 0], some[:, 1], some[:, 3]), some[:, 4], receives[here, 5])


def _unmatched(name: str, sends: IntArray, receives: IntArray) -> RunError:
    """The first message that has no counterpart."""
    sent, received = ({tuple(row) for row in rows.tolist()} for rows in (sends, receives))
    for found, what in ((sent - received, "sends rank {} {} items that it never receives"),
                        (received - sent, "never sends rank {} the {} items that it waits for")):
        if found:
            sender, receiver, items = min(found)
            return RunError(f"{name}: rank {sender} " + what.format(receiver, items))
    return RunError(f"{name}: messages of one kind differ in number")
