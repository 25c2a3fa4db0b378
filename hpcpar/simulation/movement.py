"""A movement on all ranks of a simulation: its waves of messages, with copies and waiting."""

from __future__ import annotations

import numpy as np

from hpcpar.cost.network.links import FloatArray, LinkRates
from hpcpar.cost.network.walk import Walk
from hpcpar.machine.model import Machine
from hpcpar.plan.config import Floats
from hpcpar.plan.layout import box_items
from hpcpar.schedule.algorithms.base import SCATTERED
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.sent_bytes import sent
from hpcpar.schedule.steps import Comm, Kind
from hpcpar.schedule.waves import Pairs, groups, waves


class Movement:
    """A communication step on all ranks.

    Parameters
    ----------
    factor : float
        Ratio of measured to modeled time, as in `hpcpar predict`.
    library_s : float
        Seconds of a collective whose messages are not among ranks, or unknown (the MPI library's),
        with its copies.

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
        self.step, self.ranks, self.machine = step, ranks, machine
        self.factor, self.library_s = factor, library_s
        algorithm = ALGORITHMS[step.algorithm]
        self._library = algorithm.library or algorithm.priced_only
        self._members = None if step.group is None else groups(step, step.group, ranks)[0]
        self._waves = list(waves(step, ranks))
        counted = sent(step, ranks, self._waves)
        self.messages, self.sent_bytes = counted.messages, counted.n_bytes
        self.left_bytes, self.level = links.nothing_left(ranks), 0
        for wave in self._waves:
            n_bytes = wave.items * step.item_bytes * wave.times
            self.level = max(self.level, links.leave(wave.pairs, n_bytes, self.left_bytes))
        if algorithm.priced_only:
            self._count_between_hosts(links)
        self._before_s, self._after_s = self._copies_s()
        self._walk = Walk.of(self._waves, links, algorithm.in_flight(step.kind, step.segments),
                             self._members)
        self._timed = self._walk.timed(step.item_bytes,
                                       machine.add_s_per_byte if step.group else 0.0, factor)
        self.alone_s = self._end_s(np.zeros(ranks))

    def _count_between_hosts(self, links: LinkRates) -> None:
        """Count messages to or from the server's host that leave units."""
        assert self._members is not None and self.machine.host is not None
        members, server = self._members.ravel(), int(self.step.source.config.first)
        devices = self.machine.host.ranks or self.ranks
        far = members[members // devices != server // devices]
        senders, receivers = far, np.full_like(far, server)
        if self.step.kind is Kind.BROADCAST:
            senders, receivers = receivers, senders
        n_bytes = box_items(self.step.source, far) * self.step.item_bytes
        self.level = links.leave(Pairs(senders, receivers, senders), n_bytes, self.left_bytes)

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
        for _, crossing in self._walk.rounds:
            receivers = crossing.receivers
            first = -receivers.latest(-begin_s[..., crossing.pairs.senders])
            only_receives = ~held[receivers.ranks]
            out[..., receivers.ranks[only_receives]] = first[..., only_receives]
        return out

    def _end_s(self, begin_s: FloatArray) -> FloatArray:
        if self._members is not None and self._library:
            done, last = begin_s.copy(), begin_s[..., self._members].max(axis=-1, keepdims=True)
            done[..., self._members] = last + self.library_s
            return done
        return self._walk.end_s(begin_s + self._before_s, self._timed) + self._after_s

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
