"""Simulates a movement: its waves of messages, on all ranks at once.

A message starts when its sender and receiver have reached its round. The links that it crosses
determine its latency and rate, and the flows of a wave share links. A rank sends one message after
another. A rank's round ends when it has sent and received its messages and added the summands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcpar.machine.model import Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats
from hpcpar.plan.layout import box_items
from hpcpar.schedule.algorithms.base import SCATTERED
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import Comm
from hpcpar.schedule.waves import Pairs, Wave, groups, waves
from hpcpar.simulation.links import FloatArray, LinkRates

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
        ranks, starts = np.unique(ends[order], return_index=True)
        return cls(order, starts, ranks)

    def latest(self, values: FloatArray) -> FloatArray:
        """The largest value of each rank, [..., ranks]."""
        values = values[..., self.order]
        return values if len(self.order) == len(self.ranks) else np.maximum.reduceat(
            values, self.starts, axis=-1)

    def sums(self, values: FloatArray | IntArray) -> FloatArray:
        """The sum of each rank's values."""
        return np.add.reduceat(values[self.order] * 1.0, self.starts)

    def before(self, values: FloatArray) -> FloatArray:
        """For each message, the sum of the values of the same rank's earlier messages."""
        out = np.empty_like(values)
        sorted_values = values[self.order]
        preceding = np.cumsum(sorted_values) - sorted_values
        counts = np.diff(np.append(self.starts, len(values)))
        out[self.order] = preceding - np.repeat(preceding[self.starts], counts)
        return out


class _Route(NamedTuple):
    """Properties that all waves between the same pairs share.

    `disjoint` is true if no rank sends or receives more than one message.
    """

    level: IntArray
    senders: _Grouped
    receivers: _Grouped
    disjoint: bool
    s_per_byte: FloatArray


class _Timed(NamedTuple):
    """The times of a wave's messages.

    Attributes
    ----------
    end_s : ndarray
        [messages] end of a message after the start of its round; -inf for empty messages.
    receive_s, add_s : ndarray
        [receivers] time to receive all messages one after another, and to add them.
    """

    pairs: Pairs
    route: _Route
    end_s: FloatArray
    receive_s: FloatArray
    add_s: FloatArray
    times: int


class Movement:
    """A communication step on all ranks.

    Parameters
    ----------
    factor : float
        Ratio of measured to modeled time, as in `hpcpar predict`.
    library_s : float
        Seconds of a collective of the MPI library, whose messages are unknown, with its copies.

    Attributes
    ----------
    messages, sent_bytes : ndarray
        [ranks] messages and bytes that a rank sends.
    left_bytes : list of ndarray
        For each level, [units] bytes that leave a rank, node or rack.
    level : int
        The outermost level that a message crosses; 0 if messages are unknown.
    alone_s : ndarray
        [ranks] duration if all ranks start at once.
    """

    def __init__(self, step: Comm, ranks: int, machine: Machine, links: LinkRates,
                 factor: float, library_s: float) -> None:
        self.step, self.ranks, self.machine, self.links = step, ranks, machine, links
        self.factor, self.library_s = factor, library_s
        self._routes: dict[Pairs, _Route] = {}
        algorithm = ALGORITHMS[step.algorithm]
        self._library = algorithm.library
        self._in_flight = algorithm.in_flight(step.kind, step.segments)
        self._members = None if step.group is None else groups(step, step.group, ranks)[0]
        self._waves = list(waves(step, ranks))
        counted = sent(step, ranks, self._waves)
        self.messages, self.sent_bytes = counted.messages, counted.n_bytes
        self.left_bytes, self.level = links.nothing_left(ranks), 0
        for wave in self._waves:
            n_bytes = wave.items * step.item_bytes * wave.times
            self.level = max(self.level, links.leave(wave.pairs, n_bytes, self.left_bytes))
        self._before_s, self._after_s = self._copies_s()
        self._timed = [self._times(wave) for wave in self._waves]
        self.alone_s = self._end_s(np.zeros(ranks))

    def end_s(self, begin_s: Floats) -> FloatArray:
        """When each rank ends, given when it starts: [..., ranks]."""
        begins = np.broadcast_to(begin_s, np.broadcast_shapes(np.shape(begin_s), (self.ranks,)))
        if self.step.between:
            begins = self._without_receivers(begins)
        participants = begins[..., np.flatnonzero(self.alone_s > 0)]
        if participants.size and np.all(participants == participants[..., :1]):  # nobody waits
            return begins + self.alone_s
        return self._end_s(begins)

    def _without_receivers(self, begin_s: FloatArray) -> FloatArray:
        """Start times between stages, where a message does not wait for its receiver."""
        out = begin_s.copy()
        held = box_items(self.step.source, np.arange(self.ranks)) > 0
        for wave in self._timed:
            route = wave.route
            first = -route.receivers.latest(-begin_s[..., wave.pairs.senders])
            only_receives = ~held[route.receivers.ranks]
            out[..., route.receivers.ranks[only_receives]] = first[..., only_receives]
        return out

    def _end_s(self, begin_s: FloatArray) -> FloatArray:
        if self._members is not None and self._library:
            done, last = begin_s.copy(), begin_s[..., self._members].max(axis=-1, keepdims=True)
            done[..., self._members] = last + self.library_s
            return done
        done = begin_s + self._before_s
        state: FloatArray = np.stack([done] * (self._in_flight + 1))
        for wave in self._timed:
            state = self._repeated(wave, state)
        return state[-2] + self._after_s

    def _repeated(self, wave: _Timed, state: FloatArray) -> FloatArray:
        """Play a wave `times` times. Once all members of a group advance alike, in as many rounds
        as may be in flight, they go on like that.

        `state` [in flight + 1, ..., ranks] has the ends of the last rounds, and when a rank can
        send again.
        """
        left, cycle = wave.times, self._in_flight
        while left > cycle:
            before = state
            for _ in range(cycle):
                state = _played(wave, state)
            left -= cycle
            assert self._members is not None
            passed_s = (state - before)[..., self._members]
            alike_s = passed_s[:1, ..., :1]
            if np.all(np.abs(passed_s - alike_s) <= EQUAL * state.max()):
                state = state.copy()
                state[..., self._members] += alike_s * (left // cycle)
                left %= cycle
                break
        for _ in range(left):
            state = _played(wave, state)
        return state

    def _times(self, wave: Wave) -> _Timed:
        pairs, n_bytes = wave.pairs, wave.items * self.step.item_bytes
        if pairs not in self._routes:
            self._routes[pairs] = self._route(pairs, n_bytes)
        route = self._routes[pairs]
        message_s = self.factor * (self.links.latencies_s(route.level, n_bytes)
                                   + route.s_per_byte * n_bytes)
        message_s = np.where(n_bytes > 0, message_s, 0.0)
        end_s = message_s if route.disjoint else message_s + route.senders.before(message_s)
        added = route.receivers.sums(n_bytes * wave.adds)
        per_byte = self.machine.add_s_per_byte if self.step.group else 0.0
        end_s = np.where(n_bytes > 0, end_s, -np.inf)
        return _Timed(pairs, route, end_s, route.receivers.sums(message_s),
                      added * per_byte * self.factor, wave.times)

    def _route(self, pairs: Pairs, n_bytes: IntArray) -> _Route:
        senders = _Grouped.by(pairs.senders, pairs.turn)
        receivers = _Grouped.by(pairs.receivers, pairs.turn)
        disjoint = len(pairs.senders) == len(senders.ranks) == len(receivers.ranks)
        level = self.links.crossed(pairs)
        presence = np.ones(len(n_bytes))
        if not disjoint:
            sent_bytes, received_bytes = np.zeros((2, self.ranks))
            np.add.at(sent_bytes, pairs.senders, n_bytes)
            np.add.at(received_bytes, pairs.receivers, n_bytes)
            # a rank sends (and receives) its messages one after another
            presence = n_bytes / np.maximum(sent_bytes[pairs.senders],
                                            received_bytes[pairs.receivers])
        return _Route(level, senders, receivers, disjoint,
                      self.links.seconds_per_byte(pairs, level, presence))

    def _copies_s(self) -> tuple[FloatArray, FloatArray]:
        """Seconds of packing messages, and of copying (or adding) received ones: [ranks] each."""
        step, rank, machine = self.step, np.arange(self.ranks), self.machine
        n_bytes = step.item_bytes * self.factor
        if step.group is None:
            received = np.zeros(self.ranks)
            for wave in self._waves:
                np.add.at(received, wave.pairs.receivers, wave.items * n_bytes)
            packed = self.sent_bytes * self.factor
            handling = machine.add_s_per_byte if step.reduce else machine.copy_s_per_byte
            return packed * machine.copy_s_per_byte, received * handling
        if step.kind not in SCATTERED:
            return np.zeros(self.ranks), np.zeros(self.ranks)
        held, wanted = (box_items(layout, rank) * n_bytes * machine.copy_s_per_byte
                        for layout in (step.source, step.destination))
        return held, wanted


def _played(wave: _Timed, state: FloatArray) -> FloatArray:
    """The state after one more round; see `Movement._repeated`."""
    done, port = state[-2].copy(), state[-1].copy()
    ready = np.maximum(state[0], port)
    pairs, (_, senders, receivers, disjoint, _) = wave.pairs, wave.route
    end = np.maximum(ready[..., pairs.senders], ready[..., pairs.receivers]) + wave.end_s
    sent_s, received_s = senders.latest(end), receivers.latest(end)
    if not disjoint:
        received_s = np.maximum(received_s, ready[..., receivers.ranks] + wave.receive_s)
    port[..., senders.ranks] = np.maximum(port[..., senders.ranks], sent_s)
    done[..., senders.ranks] = np.maximum(done[..., senders.ranks], sent_s)
    done[..., receivers.ranks] = np.maximum(done[..., receivers.ranks], received_s) + wave.add_s
    return np.concatenate([state[1:-1], [done, port]])
