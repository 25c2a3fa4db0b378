"""Decides who sends how much to whom, and when: the messages of a step on all ranks, in waves.

A wave holds one round of every rank. Counts of messages and bytes, the memory in which summands
land, the simulation and the price of a step are sums over its waves, or a walk through them.
`hpcpar.schedule.messages.exchange` has the rounds of a single rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hpcpar.errors import RunError
from hpcpar.plan.axis import IntArray
from hpcpar.plan.layout import box_items, lives
from hpcpar.schedule.algorithms.base import (
    ROOTED,
    SCATTERED,
    Algorithm,
    Collective,
    Message,
    Round,
)
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.overlaps import overlaps
from hpcpar.schedule.steps import Comm, Group, Kind

#: Collectives with more messages count all blocks as the largest one: where blocks differ by one
#: item at most, and where they differ by more.
MOST_MESSAGES, MOST_UNEVEN = 1 << 15, 1 << 20


@dataclass(frozen=True, eq=False)
class Pairs:
    """The sender and receiver of each message, [messages] ranks; `turn` is a message's position in
    its sender's round.
    """

    senders: IntArray
    receivers: IntArray
    turn: IntArray


@dataclass(frozen=True, eq=False)
class Wave:
    """Messages that travel together: [messages] items, and whether the receiver adds them instead
    of copying. `times` waves in a row are alike.
    """

    pairs: Pairs
    items: IntArray
    adds: IntArray
    times: int = 1

    def like(self, other: Wave) -> bool:
        """True where both waves move as many items between the same ranks."""
        return (self.pairs is other.pairs and np.array_equal(self.items, other.items)
                and np.array_equal(self.adds, other.adds))

    @classmethod
    def joined(cls, parts: Sequence[Wave]) -> Wave:
        """The messages of several groups."""
        senders, receivers, turn, items, adds = (np.concatenate(columns) for columns in zip(*(
            (w.pairs.senders, w.pairs.receivers, w.pairs.turn, w.items, w.adds) for w in parts),
            strict=True))
        return cls(Pairs(senders, receivers, turn), items, adds, parts[0].times)


# -- steps -----------------------------------------------------------------------------------------
def waves(step: Comm, ranks: int) -> Iterator[Wave]:
    """The waves of a step among `ranks` ranks, in order; none if the MPI library does the step.

    Raises
    ------
    RunError
        A send has no receive, or a receive no send.
    """
    if step.group is None:
        yield from _point_to_point(step, ranks)
        return
    parts = [between(collective_waves(step.algorithm, collective, len(members)), members)
             for collective, members in collectives(step, step.group, ranks)]
    if len(parts) == 1:
        yield from parts[0]
        return
    together = list(map(list, parts))
    if any([w.times for w in part] != [w.times for w in together[0]] for part in together):
        together = [[w for wave in part for w in [replace(wave, times=1)] * wave.times]
                    for part in together]
    for alike in itertools.zip_longest(*together):
        yield Wave.joined([wave for wave in alike if wave is not None])


def _point_to_point(step: Comm, ranks: int) -> Iterator[Wave]:
    senders, receivers, items = overlaps(step, ranks)
    if len(items):
        turn = np.arange(len(items)) - np.searchsorted(senders, senders)
        yield Wave(Pairs(senders, receivers, turn), items, np.zeros_like(items))


def between(alike: Iterable[Wave], members: IntArray) -> Iterator[Wave]:
    """Waves of a collective, in each of its groups: the ranks [groups, members] replace members."""
    known: dict[Pairs, Pairs] = {}
    for wave in alike:
        pairs = wave.pairs
        if pairs not in known:
            known.clear()  # rings go on with the same pairs
            senders, receivers = (members[:, end].ravel()
                                  for end in (pairs.senders, pairs.receivers))
            known[pairs] = Pairs(senders, receivers, np.tile(pairs.turn, len(members)))
        items, adds = (np.tile(each, len(members)) for each in (wave.items, wave.adds))
        yield Wave(known[pairs], items, adds, wave.times)


def collectives(step: Comm, group: Group, ranks: int) -> Iterator[tuple[Collective, IntArray]]:
    """The distinct collectives of a step's groups, and the ranks of each: [groups, members]."""
    members, sizes = groups(step, group, ranks)
    alike, which = sizes[:1], np.zeros(len(sizes), np.int64)
    if np.any(sizes != alike):
        alike, which = np.unique(sizes, axis=0, return_inverse=True)
    for i, row in enumerate(alike):
        yield (Collective(step.kind, tuple(row.tolist()), step.segments, step.inner, step.root),
               members[np.ravel(which) == i])


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


# -- collectives -----------------------------------------------------------------------------------
def collective_waves(algorithm: str, collective: Collective, groups: int = 1) -> Iterable[Wave]:
    """The messages between the members of a collective, of which a step has `groups`."""
    return table(algorithm, counted(algorithm, collective, groups))


def counted(algorithm: str, collective: Collective, groups: int = 1) -> Collective:
    """The collective as it is counted, priced and simulated: with equal blocks where they are
    equal, or where an algorithm that has a round for every block has many messages.
    """
    kind, p, sizes, segments = (collective.kind, collective.p, collective.sizes,
                                collective.segments)
    if kind in ROOTED or not ALGORITHMS[algorithm].block_by_block:
        return collective
    block, even, most = -(-sizes[0] // p), sizes[0] % p == 0, MOST_MESSAGES
    if kind in SCATTERED:
        block, even = max(sizes), min(sizes) == max(sizes)
        most = MOST_MESSAGES if min(sizes) + 1 >= block else MOST_UNEVEN
    if (even and block % segments == 0) or groups * p * p * segments > most:
        return Collective.of_blocks(kind, p, block, segments, collective.inner)
    return collective


@lru_cache(maxsize=512)
def table(algorithm: str, collective: Collective) -> tuple[Wave, ...]:
    """All messages between the members of a collective.

    Raises
    ------
    RunError
        A send has no receive, or a receive no send.
    """
    entry = ALGORITHMS[algorithm]
    name = f"{algorithm} {collective.kind.value}"
    one_by_one = entry.in_flight(collective.kind, collective.segments) == 1
    out: list[Wave] = []
    for sends, recvs, adds, times in _rounds_of_all(entry, collective, name):
        if one_by_one and not sends.shape[1] and not recvs.shape[1]:
            continue
        pairs, items = _matched(name, sends, recvs, collective.p, out[-1].pairs if out else None)
        wave = Wave(pairs, items, np.broadcast_to(adds, len(items)), times)
        if out and out[-1].like(wave):
            out[-1] = replace(wave, times=out[-1].times + times)
        else:
            out.append(wave)
    return tuple(out)


def _rounds_of_all(entry: Algorithm, collective: Collective, name: str
                   ) -> Iterator[tuple[IntArray, IntArray, IntArray, int]]:
    """Sends, receives, and by receiver whether it adds, of all members in each round."""
    members = np.arange(collective.p)
    if entry.together:
        for r in entry.rounds(collective, members):
            yield (_rows(members, r.sends), _rows(members, r.recvs), np.array(int(r.reduce)),
                   r.times)
        return
    every = [list(entry.rounds(collective, me)) for me in range(collective.p)]
    counts = [len(each) for each in every]
    if len(set(counts)) > 1:
        least, most = (counts.index(count) for count in (min(counts), max(counts)))
        raise RunError(f"{name}: member {least} has {counts[least]} rounds and member {most} has "
                       f"{counts[most]}; give all members equally many, some without messages")
    for number in range(counts[0]):
        some = [(np.array([me]), every[me][number]) for me in range(collective.p)]
        sends, recvs = (np.concatenate([_rows(me, getattr(r, ends)) for me, r in some], axis=1)
                        for ends in ("sends", "recvs"))
        adds = np.array([r.reduce for _, r in some], np.int64)
        yield sends, recvs, adds[np.sort(recvs[0])], 1


def _rows(me: IntArray, messages: Sequence[Message]) -> IntArray:
    """Member, peer, turn and items of the messages of a round: [4, messages]."""
    if not messages:
        return np.zeros((4, 0), np.int64)
    rows = np.concatenate([
        np.stack(np.broadcast_arrays(me, m.peer, turn, np.asarray(m.stop) - m.start))
        for turn, m in enumerate(messages)], axis=1)
    return rows[:, rows[3] > 0]


def _matched(name: str, sends: IntArray, recvs: IntArray, ranks: int,
             before: Pairs | None = None) -> tuple[Pairs, IntArray]:
    """The pairs and items of messages whose sends and receives fit to each other."""
    sender, receiver, turn, items = sends
    order = np.lexsort((turn, sender, receiver))
    sender, receiver, turn, items = sends[:, order]
    awaited = recvs[:, np.lexsort((recvs[2], recvs[1], recvs[0]))]
    if not np.array_equal(awaited[[1, 0, 3]], [sender, receiver, items]):
        raise _unmatched(name, np.stack([sender, receiver, items], axis=1), awaited[[1, 0, 3]].T)
    if before is not None and all(map(np.array_equal, (sender, receiver, turn), (
            before.senders, before.receivers, before.turn))):
        return before, items
    return Pairs(sender, receiver, turn), items


def _unmatched(name: str, sends: IntArray, receives: IntArray) -> RunError:
    """An error that names the first message without a counterpart."""
    sent, received = ({tuple(row) for row in rows.tolist()} for rows in (sends, receives))
    for rows, text in ((sent - received, "sends rank {} {} items that it never receives"),
                       (received - sent, "never sends rank {} the {} items that it waits for")):
        if rows:
            sender, receiver, items = min(rows)
            return RunError(f"{name}: rank {sender} " + text.format(receiver, items))
    return RunError(f"{name}: messages of one kind differ in number")


# -- the busiest member ----------------------------------------------------------------------------
#: In larger groups, only the members near both ends count.
MOST_MEMBERS = 1024


@dataclass(frozen=True)
class Most:
    """The most that any member of a collective on equal blocks does: messages and blocks that it
    sends, and blocks that it has to add at once.
    """

    messages: int
    blocks: int
    landing: int

    def items(self, kind: Kind, p: int, n: int, least: int, largest: int) -> int:
        """The most items that a member sends of a buffer of n, where blocks have different sizes.

        It sends the largest of the p blocks, and all but the smallest. An allreduce cuts its buffer
        into equal blocks.
        """
        if kind in SCATTERED:
            return min(self.blocks * largest, n - (p - self.blocks) * least)
        return self.blocks * n if kind in ROOTED else -(-self.blocks * n // p)


@lru_cache(maxsize=10_000)
def most(algorithm: str, kind: Kind, p: int, segments: int = 1, inner: int = 1) -> Most:
    """The most of any member; in large groups of the members near both ends of the group.

    A block of a reduction or a broadcast is its whole buffer. The MPI library sends a member's own
    contribution, and has the result of a reduce-scatter land apart.
    """
    entry, size = ALGORITHMS[algorithm], segments * (1 if kind in ROOTED else p)
    if entry.priced_only:
        return Most(int(kind in entry.hidden), int(kind in entry.hidden), 0)
    if entry.library:
        return Most(1, 1 if kind is Kind.ALLGATHER else p, int(kind is Kind.REDUCE_SCATTER))
    one = Collective(kind, (segments if kind in SCATTERED else size,) * p, segments, inner, 0,
                     kind not in ROOTED)
    members = np.arange(p)
    if p > MOST_MEMBERS:
        members = np.concatenate(np.split(members, [MOST_MEMBERS // 2, -MOST_MEMBERS // 2])[::2])
    messages, items, landing = np.zeros((3, len(members)), np.int64)
    for some, r in _of_members(entry, one, members):
        for m in r.sends:
            n = np.subtract(m.stop, m.start)
            messages[some] += np.greater(n, 0) * r.times
            items[some] += n * r.times
        if r.reduce:
            lands = sum(np.subtract(m.stop, m.start) for m in r.recvs)
            landing[some] = np.maximum(landing[some], lands)
    # each of the pieces of a block has a place to land
    return Most(int(messages.max()), -(-int(items.max()) // segments), int(landing.max()))


def _of_members(entry: Algorithm, collective: Collective, members: IntArray
                ) -> Iterator[tuple[IntArray | int, Round]]:
    if entry.together:
        yield from ((np.arange(len(members)), r) for r in entry.rounds(collective, members))
    else:
        yield from ((i, r) for i, me in enumerate(members.tolist())
                    for r in entry.rounds(collective, me))
