"""A movement in virtual time: its waves of messages, played on all ranks at once.

A message starts when its sender and its receiver have both come to its round, and takes the latency
and the rate of the links that it crosses; a rank sends one message after another. Flows of a wave
that cross one link share it. A round ends when all its messages have gone and come, and what came
is added.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hpcpar.machine.model import Machine
from hpcpar.plan.axis import IntArray
from hpcpar.plan.config import Floats
from hpcpar.plan.rank_boxes import box_items
from hpcpar.schedule.algorithms.base import SCATTERED
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import Comm
from hpcpar.schedule.waves import Pairs, Wave, groups, streams, waves
from hpcpar.simulation.links import FloatArray, LinkRates

#: Messages that are kept between two uses; of a movement with more, waves that can be streamed are
#: made again.
MOST_MESSAGES = 1 << 16


class _Grouped(NamedTuple):
    """Messages by their sender (or receiver): how to sort them, where each of the ranks begins."""

    order: IntArray
    starts: IntArray
    ranks: IntArray

    @classmethod
    def by(cls, ends: IntArray, turn: IntArray) -> _Grouped:
        order = np.lexsort((turn, ends))
        ranks, starts = np.unique(ends[order], return_index=True)
        return cls(order, starts, ranks)

    def latest(self, values: FloatArray) -> FloatArray:
        """The greatest of each rank's values, [..., ranks]."""
        values = values[..., self.order]
        return values if len(self.order) == len(self.ranks) else np.maximum.reduceat(
            values, self.starts, axis=-1)

    def sums(self, values: FloatArray | IntArray) -> FloatArray:
        """The sum of each rank's values."""
        return np.add.reduceat(values[self.order] * 1.0, self.starts)

    def before(self, values: FloatArray) -> FloatArray:
        """The sum of the values of the same rank that come before each message's."""
        out = np.empty_like(values)
        sorted_values = values[self.order]
        upto = np.cumsum(sorted_values) - sorted_values
        counts = np.diff(np.append(self.starts, len(values)))
        out[self.order] = upto - np.repeat(upto[self.starts], counts)
        return out


class _Route(NamedTuple):
    """Properties shared by all waves between given pairs."""

    level: IntArray
    senders: _Grouped
    receivers: _Grouped
    alone: bool
    s_per_byte: FloatArray


class _Timed(NamedTuple):
    """A wave's messages in seconds.

    Attributes
    ----------
    end_s : ndarray
        [messages] end of a message after the start of its round; -inf where nothing is sent.
    receive_s, add_s : ndarray
        [receivers] all that comes, one after another; adding it.
    """

    pairs: Pairs
    route: _Route
    end_s: FloatArray
    receive_s: FloatArray
    add_s: FloatArray


class Movement:
    """A communication step between all ranks.

    Parameters
    ----------
    factor : float
        Measured time over that of the links, as `hpcpar predict` has it.
    library_s : float
        Seconds of a collective of the MPI library, whose messages nobody sees, with its copies.

    Attributes
    ----------
    messages, sent_bytes : ndarray
        [ranks]
    left_bytes : list of ndarray
        By level: [units] bytes that leave a rank, a node, a rack.
    level : int
        The outermost level that a message crosses; 0 where none is seen.
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
        counted = sent(step, ranks)
        self.messages, self.sent_bytes = counted.messages, counted.n_bytes
        self.left_bytes, self.level = links.nothing_left(ranks), 0
        found, most = waves(step, ranks), MOST_MESSAGES // ranks if streams(step) else None
        kept = list(itertools.islice(found, most))
        self._waves = kept if next(found, None) is None else None
        for wave in self._each():
            n_bytes = wave.items * step.item_bytes
            self.level = max(self.level, links.leave(wave.pairs, n_bytes, self.left_bytes))
        self._before_s, self._after_s = self._copies_s()
        self._known = None if self._waves is None else list(self._timed())
        self.alone_s = self._end_s(np.zeros(ranks))

    @property
    def takes_part(self) -> IntArray:
        """Ranks that send or receive."""
        return np.flatnonzero(self.alone_s > 0)

    def end_s(self, begin_s: Floats) -> FloatArray:
        """When each rank is done, [..., ranks], given when it begins."""
        begins = np.broadcast_to(begin_s, np.broadcast_shapes(np.shape(begin_s), (self.ranks,)))
        if self.step.between:
            begins = self._without_receivers(begins)
        taking = begins[..., self.takes_part]
        if taking.size and np.all(taking == taking[..., :1]):  # nobody waits for anybody
            return begins + self.alone_s
        return self._end_s(begins)

    def _without_receivers(self, begin_s: FloatArray) -> FloatArray:
        """From stage to stage a message leaves whether or not its receiver is there."""
        out = begin_s.copy()
        held = box_items(self.step.source, np.arange(self.ranks)) > 0
        for wave in self._timed() if self._known is None else self._known:
            route = wave.route
            first = -route.receivers.latest(-begin_s[..., wave.pairs.senders])
            only = ~held[route.receivers.ranks]
            out[..., route.receivers.ranks[only]] = first[..., only]
        return out

    def _end_s(self, begin_s: FloatArray) -> FloatArray:
        if self._members is not None and self._library:
            done, last = begin_s.copy(), begin_s[..., self._members].max(axis=-1, keepdims=True)
            done[..., self._members] = last + self.library_s
            return done
        done = begin_s + self._before_s
        port, earlier = done, deque([done] * self._in_flight, self._in_flight)
        for wave in self._timed() if self._known is None else self._known:
            ready = np.maximum(earlier[0], port)
            pairs, (_, senders, receivers, alone, _) = wave.pairs, wave.route
            end = (np.maximum(ready[..., pairs.senders], ready[..., pairs.receivers])
                   + wave.end_s)
            gone, come = senders.latest(end), receivers.latest(end)
            if not alone:
                come = np.maximum(come, ready[..., receivers.ranks] + wave.receive_s)
            done, port = done.copy(), port.copy()
            port[..., senders.ranks] = np.maximum(port[..., senders.ranks], gone)
            done[..., senders.ranks] = np.maximum(done[..., senders.ranks], gone)
            done[..., receivers.ranks] = (np.maximum(done[..., receivers.ranks], come)
                                          + wave.add_s)
            earlier.append(done)
        return done + self._after_s

    def _each(self) -> Iterable[Wave]:
        return waves(self.step, self.ranks) if self._waves is None else self._waves

    def _timed(self) -> Iterator[_Timed]:
        for wave in self._each():
            pairs, n_bytes = wave.pairs, wave.items * self.step.item_bytes
            if pairs not in self._routes:
                self._routes[pairs] = self._route(pairs, n_bytes)
            route = self._routes[pairs]
            each_s = self.factor * (self.links.latencies_s(route.level, n_bytes)
                                    + route.s_per_byte * n_bytes)
            each_s = np.where(n_bytes > 0, each_s, 0.0)
            end_s = each_s if route.alone else each_s + route.senders.before(each_s)
            added = route.receivers.sums(n_bytes * wave.adds)
            per_byte = self.machine.add_s_per_byte if self.step.group else 0.0
            end_s = np.where(n_bytes > 0, end_s, -np.inf)
            yield _Timed(pairs, route, end_s, route.receivers.sums(each_s),
                         added * per_byte * self.factor)

    def _route(self, pairs: Pairs, n_bytes: IntArray) -> _Route:
        senders = _Grouped.by(pairs.senders, pairs.turn)
        receivers = _Grouped.by(pairs.receivers, pairs.turn)
        alone = len(pairs.senders) == len(senders.ranks) == len(receivers.ranks)
        level = self.links.crossed(pairs)
        presence = np.ones(len(n_bytes))
        if not alone:
            gone, come = np.zeros((2, self.ranks))
            np.add.at(gone, pairs.senders, n_bytes)
            np.add.at(come, pairs.receivers, n_bytes)
            # a rank sends, and receives, one message after another
            presence = n_bytes / np.maximum(gone[pairs.senders], come[pairs.receivers])
        return _Route(level, senders, receivers, alone,
                      self.links.seconds_per_byte(pairs, level, presence))

    def _copies_s(self) -> tuple[FloatArray, FloatArray]:
        """Seconds of packing what is sent, and of copying (or adding) what has come."""
        step, rank, machine = self.step, np.arange(self.ranks), self.machine
        n_bytes = step.item_bytes * self.factor
        if step.group is None:
            received = np.zeros(self.ranks)
            for wave in self._each():
                np.add.at(received, wave.pairs.receivers, wave.items * n_bytes)
            packed = self.sent_bytes * self.factor
            handling = machine.add_s_per_byte if step.reduce else machine.copy_s_per_byte
            return packed * machine.copy_s_per_byte, received * handling
        if step.kind not in SCATTERED:
            return np.zeros(self.ranks), np.zeros(self.ranks)
        held, wanted = (box_items(layout, rank) * n_bytes * machine.copy_s_per_byte
                        for layout in (step.source, step.destination))
        return held, wanted
