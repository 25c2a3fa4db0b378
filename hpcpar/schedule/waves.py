"""The messages of a communication step between all of its ranks, in waves.

A wave holds one round per rank, so that every send is in the same wave as its receive.
`hpcpar.schedule.messages.exchange` has the rounds of a single rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcpar.errors import RunError
from hpcpar.plan.axis import IntArray
from hpcpar.plan.rank_boxes import box_items, lives
from hpcpar.schedule.algorithms.base import Collective, Round
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.halo_exchange import point_to_point
from hpcpar.schedule.steps import Comm, Group, Kind


@dataclass(frozen=True, eq=False)
class Pairs:
    """The sender and receiver of each message, [messages] ranks, sorted by receiver; `turn` is a
    message's position in its sender's round.
    """

    senders: IntArray
    receivers: IntArray
    turn: IntArray


@dataclass(frozen=True)
class Wave:
    """Messages that travel together: [messages] items (0 where nothing is sent), and whether the
    receiver adds them instead of copying.
    """

    pairs: Pairs
    items: IntArray
    adds: IntArray

    def between(self, members: IntArray) -> Wave:
        """The same wave in every group: the ranks [groups, members] replace the members."""
        senders, receivers = (members[:, end].ravel()
                              for end in (self.pairs.senders, self.pairs.receivers))
        turn, items, adds = (np.tile(each, len(members))
                             for each in (self.pairs.turn, self.items, self.adds))
        return Wave(Pairs(senders, receivers, turn), items, adds)

    @classmethod
    def joined(cls, parts: Sequence[Wave]) -> Wave:
        """All messages, sorted by receiver."""
        senders, receivers, turn, items, adds = (np.concatenate(columns) for columns in zip(*(
            (w.pairs.senders, w.pairs.receivers, w.pairs.turn, w.items, w.adds) for w in parts),
            strict=True))
        order = np.argsort(receivers, kind="stable")
        pairs = Pairs(senders[order], receivers[order], turn[order])
        return cls(pairs, items[order], adds[order])


#: Message tables are cached for groups of at most this many members.
KEPT_MEMBERS = 1024


def waves(step: Comm, ranks: int) -> Iterator[Wave]:
    """The waves of a step among `ranks` ranks, in order; none if the MPI library does the step.

    Raises
    ------
    RunError
        A send has no receive, or a receive no send.
    """
    if step.group is None:
        rounds = {rank: list(point_to_point(step, rank).rounds)
                  for rank in range(ranks) if step.concerns(rank)}
        name = f"step {step.index} ({step.label})"
        yield from (wave for _, wave in _matched(name, _Messages.of(rounds)))
        return
    members, sizes = groups(step, step.group, ranks)
    shifts = ALGORITHMS[step.algorithm].shifts(step.kind, sizes, step.segments)
    yield from _of_groups(step, step.group, ranks) if shifts is None else _shifted(members, shifts)


def streams(step: Comm) -> bool:
    """True where `waves` generates a step's waves one by one, without a table of all messages."""
    shifts = ALGORITHMS[step.algorithm].shifts(step.kind, np.ones((1, 2), np.int64), 1)
    return step.group is not None and shifts is not None


def _shifted(members: IntArray, shifts: Iterator[tuple[IntArray, bool]]) -> Iterator[Wave]:
    receivers = np.roll(members, -1, axis=1).ravel()
    order = np.argsort(receivers)
    pairs = Pairs(members.ravel()[order], receivers[order], np.zeros_like(order))
    for items, adds in shifts:
        yield Wave(pairs, items.ravel()[order], np.full(len(order), adds))


def _of_groups(step: Comm, group: Group, ranks: int) -> Iterator[Wave]:
    """Waves of all groups side by side."""
    parts: dict[int, list[Wave]] = defaultdict(list)
    for collective, members in collectives(step, group, ranks):
        for number, wave in table(step.algorithm, collective):
            parts[number].append(wave.between(members))
    for number in sorted(parts):
        yield Wave.joined(parts[number])


def collectives(step: Comm, group: Group, ranks: int) -> Iterator[tuple[Collective, IntArray]]:
    """The distinct collectives of a step's groups, and the ranks of each: [groups, members]."""
    members, sizes = groups(step, group, ranks)
    alike, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, row in enumerate(alike):
        yield (Collective(step.kind, tuple(row.tolist()), step.segments, step.inner, step.root),
               members[np.ravel(which) == i])


def table(algorithm: str, collective: Collective) -> tuple[tuple[int, Wave], ...]:
    """All messages between a collective's members: (number, wave) of each wave."""
    make = _kept_table if collective.p <= KEPT_MEMBERS else _table
    return make(algorithm, collective)


def _table(algorithm: str, collective: Collective) -> tuple[tuple[int, Wave], ...]:
    entry = ALGORITHMS[algorithm]
    rounds = {me: entry.rounds(collective, me) for me in range(collective.p)}
    return tuple(_matched(f"{algorithm} {collective.kind.value}", _Messages.of(rounds)))


_kept_table = lru_cache(maxsize=256)(_table)


def groups(step: Comm, group: Group, ranks: int) -> tuple[IntArray, IntArray]:
    """Ranks of every group, and items of their blocks: [groups, members] each.

    In an allreduce, a reduction or a broadcast, a block is the whole buffer.
    """
    rank = np.arange(ranks)
    rank = rank[lives(step.source, rank)]
    base = rank - group.first
    for mesh_axis in group.mesh_axes:
        base = base - np.asarray(mesh_axis.of(rank - group.first)) * int(mesh_axis.stride)
    members = np.array(group.members(group.first)) + np.unique(base)[:, None]
    parts = step.destination if step.kind is Kind.REDUCE_SCATTER else step.source
    return members, box_items(parts, members.ravel()).reshape(members.shape)


@dataclass(frozen=True)
class _Messages:
    """Sends and receives of many ranks; the columns are rank, peer, round, turn, items, adds."""

    sends: IntArray
    receives: IntArray

    @classmethod
    def of(cls, rounds: dict[int, list[Round]]) -> _Messages:
        """The messages in the rounds of each rank (or member)."""
        sends = [(rank, m.peer, i, turn, m.stop - m.start, 0)
                 for rank, each in rounds.items() for i, r in enumerate(each)
                 for turn, m in enumerate(r.sends)]
        receives = [(rank, m.peer, i, turn, m.stop - m.start, r.reduce)
                    for rank, each in rounds.items() for i, r in enumerate(each)
                    for turn, m in enumerate(r.recvs)]
        return cls(*(np.array(rows, np.int64).reshape(-1, 6) for rows in (sends, receives)))


def _matched(name: str, messages: _Messages) -> Iterator[tuple[int, Wave]]:
    """Pair sends with receives, in order between each two ranks, and number the waves."""
    sends, receives = messages.sends, messages.receives
    sends = sends[np.lexsort(sends[:, [3, 2, 0, 1]].T)]
    receives = receives[np.lexsort(receives[:, [3, 2, 1, 0]].T)]
    ends = sends[:, [0, 1, 4]], receives[:, [1, 0, 4]]
    if not np.array_equal(*ends):
        raise _unmatched(name, *ends)
    if not len(sends):
        return
    # a round is in a later wave than its rank's previous round, and in its partners' wave
    count = 1 + max(int(sends[:, 2].max()), int(receives[:, 2].max()))
    ranks, places = np.unique(np.concatenate([sends[:, 0], receives[:, 0]]), return_inverse=True)
    own, other = np.split(places, 2)
    number = np.arange(count)
    wave = np.tile(number, (len(ranks), 1))
    while True:
        later = wave.copy()
        sent, received = (own, sends[:, 2]), (other, receives[:, 2])
        together = np.maximum(later[sent], later[received])
        np.maximum.at(later, sent, together)
        np.maximum.at(later, received, together)
        later = np.maximum.accumulate(later - number, axis=1) + number
        if np.array_equal(later, wave):
            break
        wave = later
    number_of = wave[own, sends[:, 2]]
    for w in np.unique(number_of):
        chosen = number_of == w
        some = sends[chosen]
        yield int(w), Wave(Pairs(some[:, 0], some[:, 1], some[:, 3]), some[:, 4],
                           receives[chosen, 5])


def _unmatched(name: str, sends: IntArray, receives: IntArray) -> RunError:
    """An error that names the first message without a counterpart."""
    sent, received = ({tuple(row) for row in rows.tolist()} for rows in (sends, receives))
    for rows, text in ((sent - received, "sends rank {} {} items that it never receives"),
                       (received - sent, "never sends rank {} the {} items that it waits for")):
        if rows:
            sender, receiver, items = min(rows)
            return RunError(f"{name}: rank {sender} " + text.format(receiver, items))
    return RunError(f"{name}: messages of one kind differ in number")
