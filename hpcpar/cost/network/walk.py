"""Decides when each rank has sent and received its messages, by a walk through their waves.

A message starts when its sender and receiver have reached its round. The links that it crosses
determine its latency and rate, and the flows of a wave share links. A rank sends one message after
another. A rank's round ends when it has sent and received its messages and added the summands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcpar.cost.network.links import FloatArray, LinkRates
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats
from hpcpar.schedule.waves import Pairs, Wave

#: Relative difference of times that count as equal.
EQUAL = 1e-12


class _Grouped(NamedTuple):
    """Messages grouped by sender (or receiver): their order, and the start of each rank's group."""

    order: IntArray
    starts: IntArray
    ranks: IntArray

    @classmethod
    def by(cls, ends: IntArray, turn: IntArray) -> _Grouped:
        order = np.lexsort((turn, ends))
        ranks = ends[order]
        starts = np.flatnonzero(np.diff(ranks, prepend=-1))
        return cls(order, starts, ranks[starts])

    def latest(self, values: FloatArray) -> FloatArray:
        """The largest value of each rank, [..., ranks]."""
        values = values[..., self.order]
        return values if len(self.order) == len(self.ranks) else np.maximum.reduceat(
            values, self.starts, axis=-1)

    def sums(self, values: FloatArray | IntArray) -> FloatArray:
        """The sum of each rank's values, [..., ranks]."""
        values = values[..., self.order] * 1.0
        return values if len(self.order) == len(self.ranks) else np.add.reduceat(
            values, self.starts, axis=-1)

    def before(self, values: FloatArray) -> FloatArray:
        """For each message, the sum of the values of the same rank's earlier messages."""
        out = np.empty_like(values)
        sorted_values = values[..., self.order]
        preceding = np.cumsum(sorted_values, axis=-1) - sorted_values
        counts = np.diff(np.append(self.starts, len(self.order)))
        out[..., self.order] = preceding - np.repeat(preceding[..., self.starts], counts, axis=-1)
        return out


class Crossing(NamedTuple):
    """Messages between the same pairs of ranks, in any number of waves: [messages].

    Attributes
    ----------
    level : ndarray
        Index of the machine's level that a message crosses.
    s_per_byte : ndarray
        Inverse bandwidth of a message, which shares its links with the others.
    disjoint : bool
        No rank sends or receives more than one message.
    """

    pairs: Pairs
    level: IntArray
    s_per_byte: FloatArray
    senders: _Grouped
    receivers: _Grouped
    disjoint: bool

    @classmethod
    def of(cls, pairs: Pairs, level: IntArray, s_per_byte: FloatArray) -> Crossing:
        """The crossing of messages with known rates."""
        senders = _Grouped.by(pairs.senders, pairs.turn)
        receivers = _Grouped.by(pairs.receivers, pairs.turn)
        return cls(pairs, level, s_per_byte, senders, receivers,
                   len(pairs.senders) == len(senders.ranks) == len(receivers.ranks))


def rates(wave: Wave, links: LinkRates) -> tuple[IntArray, FloatArray]:
    """The level that each message of a wave crosses, and its inverse bandwidth."""
    pairs, items = wave.pairs, wave.items
    level = links.crossed(pairs)
    # a rank sends (and receives) its messages one after another
    sent, received = (np.bincount(ends, items)[ends] for ends in (pairs.senders, pairs.receivers))
    return level, links.seconds_per_byte(pairs, level, items / np.maximum(sent, received))


class Timed(NamedTuple):
    """The times of a wave's messages, which may be [..., messages] for messages of several sizes.

    Attributes
    ----------
    end_s : ndarray
        [messages] end of a message after the start of its round.
    receive_s, add_s : ndarray
        [receivers] time to receive all messages one after another, and to add them.
    """

    crossing: Crossing
    end_s: FloatArray
    receive_s: FloatArray
    add_s: FloatArray
    times: int


class Walk:
    """The waves of a movement, and the links that their messages cross.

    Parameters
    ----------
    rounds : sequence of (Wave, Crossing)
    in_flight : int
        Rounds of a rank that may be in flight at once.
    groups : ndarray
        [groups, members] ranks that exchange messages with each other; needed where waves repeat.
    """

    def __init__(self, rounds: Sequence[tuple[Wave, Crossing]], links: LinkRates,
                 in_flight: int = 1, groups: IntArray | None = None) -> None:
        self.rounds, self.links = rounds, links
        self.in_flight, self.groups = in_flight, groups

    @classmethod
    def of(cls, waves: Iterable[Wave], links: LinkRates, in_flight: int = 1,
           groups: IntArray | None = None) -> Walk:
        """The walk of all messages of a movement."""
        known: dict[Pairs, Crossing] = {}
        rounds = []
        for wave in waves:
            if wave.pairs not in known:
                known[wave.pairs] = Crossing.of(wave.pairs, *rates(wave, links))
            rounds.append((wave, known[wave.pairs]))
        return cls(rounds, links, in_flight, groups)

    def timed(self, item_bytes: Floats, add_s_per_byte: float = 0.0, factor: float = 1.0
              ) -> list[Timed]:
        """The times of all messages; an array of `item_bytes`, [..., 1], gives times of each size.

        Parameters
        ----------
        add_s_per_byte : float
            Time of adding a received byte.
        factor : float
            Ratio of measured to modeled time.
        """
        out = []
        for wave, crossing in self.rounds:
            n_bytes = wave.items * item_bytes
            message_s = factor * (self.links.latencies_s(crossing.level, n_bytes)
                                  + crossing.s_per_byte * n_bytes)
            end_s = message_s
            if not crossing.disjoint:
                end_s = message_s + crossing.senders.before(message_s)
            added = crossing.receivers.sums(n_bytes * wave.adds)
            out.append(Timed(crossing, end_s, crossing.receivers.sums(message_s),
                             added * (add_s_per_byte * factor), wave.times))
        return out

    def alone_s(self, item_bytes: FloatArray, add_s_per_byte: float) -> FloatArray:
        """Seconds until the last rank ends, if all start at once, for each size of an item."""
        if self.slowest is None:
            begin_s = np.zeros((len(item_bytes), 1 + max(
                int(max(c.senders.ranks[-1], c.receivers.ranks[-1])) for _, c in self.rounds)))
            timed = self.timed(item_bytes[:, None], add_s_per_byte)
            last_s: FloatArray = self.end_s(begin_s, timed).max(axis=-1)
            return last_s
        level, s_per_item, items, added, times = self.slowest
        each_s = self.links.latencies_s(level.astype(int), items * item_bytes[:, None])
        return (each_s + (s_per_item + added * add_s_per_byte) * item_bytes[:, None]) @ times

    @cached_property
    def slowest(self) -> FloatArray | None:
        """Level, seconds for a byte an item, items, items to add, and repeats of the slowest
        message of each wave, if each of these messages waits for the one before; else None.
        """
        if self.in_flight > 1 or not self.rounds:
            return None
        out, waits = [], np.ones(1 + max(int(c.pairs.receivers.max()) for _, c in self.rounds)
                                 + max(int(c.pairs.senders.max()) for _, c in self.rounds), bool)
        for wave, crossing in self.rounds:
            pairs, level, items = wave.pairs, crossing.level, wave.items
            traits = np.stack([*self.links.latencies_of(level), crossing.s_per_byte * items, items,
                               items * wave.adds])
            most = traits.max(axis=1, keepdims=True)
            slowest = (traits >= most - EQUAL * np.abs(most)).all(axis=0)
            follow = np.flatnonzero(slowest & (waits[pairs.senders] | waits[pairs.receivers]))
            if not crossing.disjoint or not len(follow):
                return None
            one = follow[0]
            out.append((level[one], traits[-3, one], items[one], traits[-1, one], wave.times))
            waits = np.zeros_like(waits)
            waits[pairs.receivers[follow]] = True
            if not wave.adds[one]:
                waits[pairs.senders[follow]] = True
        return np.array(out).T

    def end_s(self, begin_s: FloatArray, timed: Sequence[Timed]) -> FloatArray:
        """When each rank ends, given when it starts: [..., ranks]."""
        state: FloatArray = np.stack([begin_s] * (self.in_flight + 1))
        for wave in timed:
            state = self._repeated(wave, state)
        return state[-2]

    def _repeated(self, wave: Timed, state: FloatArray) -> FloatArray:
        """Play a wave `times` times. Once all members of a group advance alike, in as many rounds
        as may be in flight, they go on like that.

        `state` [in flight + 1, ..., ranks] has the ends of the last rounds, and when a rank can
        send again.
        """
        left, cycle = wave.times, self.in_flight
        while left > cycle:
            before = state
            for _ in range(cycle):
                state = _played(wave, state)
            left -= cycle
            assert self.groups is not None
            passed_s = (state - before)[..., self.groups]
            alike_s = passed_s[:1, ..., :1]
            if np.all(np.abs(passed_s - alike_s) <= EQUAL * state.max(axis=(0, -1))[..., None, None]
                      ):
                state = state.copy()
                state[..., self.groups] += alike_s * (left // cycle)
                left %= cycle
                break
        for _ in range(left):
            state = _played(wave, state)
        return state


def _played(wave: Timed, state: FloatArray) -> FloatArray:
    """The state after one more round; see `Walk._repeated`."""
    done, port = state[-2].copy(), state[-1].copy()
    ready = np.maximum(state[0], port)
    crossing, senders, receivers = wave.crossing, wave.crossing.senders, wave.crossing.receivers
    pairs = crossing.pairs
    end = np.maximum(ready[..., pairs.senders], ready[..., pairs.receivers]) + wave.end_s
    sent_s, received_s = senders.latest(end), receivers.latest(end)
    if not crossing.disjoint:
        received_s = np.maximum(received_s, ready[..., receivers.ranks] + wave.receive_s)
    port[..., senders.ranks] = np.maximum(port[..., senders.ranks], sent_s)
    done[..., senders.ranks] = np.maximum(done[..., senders.ranks], sent_s)
    done[..., receivers.ranks] = np.maximum(done[..., receivers.ranks], received_s) + wave.add_s
    return np.concatenate([state[1:-1], [done, port]])
