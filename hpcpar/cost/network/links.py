"""Decides which links messages cross, and the rates of messages that share them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.plan.axis import IntArray
from hpcpar.schedule.waves import Pairs

FloatArray: TypeAlias = NDArray[np.floating]


class LinkRates:
    """Latencies and rates of messages between the ranks of a machine.

    Flows that leave (or enter) a unit at the same time share its links, max-min fair.
    """

    def __init__(self, network_model: NetworkModel) -> None:
        self.levels, self._model = network_model.machine.levels, network_model

    def crossed(self, pairs: Pairs) -> IntArray:
        """Index of the level that each message crosses."""
        level = self._model.between(pairs.senders, pairs.receivers)
        return np.broadcast_to(level, pairs.senders.shape)

    def nothing_left(self, ranks: int) -> list[IntArray]:
        """Zero bytes out of each unit, for each level (ranks are the innermost units)."""
        return [np.zeros(-(-ranks // int(size)), np.int64) for size in self._model.inner]

    def leave(self, pairs: Pairs, n_bytes: IntArray, left_bytes: list[IntArray]) -> int:
        """Add messages to the bytes that leave each unit, in place.

        Returns the outermost level that a message crosses.
        """
        level = self.crossed(pairs)
        for i, unit_bytes in enumerate(left_bytes):
            crosses = self._crosses(level, i)
            np.add.at(unit_bytes, pairs.senders[crosses] // self._model.inner[i], n_bytes[crosses])
        return int(level[n_bytes > 0].max(initial=0))

    def busy_s(self, left_bytes: list[IntArray]) -> list[FloatArray]:
        """For each level, [units] seconds that the links take for the bytes that leave a unit."""
        links = np.minimum([level.shared_links for level in self.levels], self._model.inner)
        return [n_bytes * s_per_byte for n_bytes, s_per_byte in zip(
            left_bytes, self._model.beta_s_per_byte / links, strict=True)]

    @staticmethod
    def _crosses(level: IntArray, i: int) -> NDArray[np.bool_]:
        """Messages that leave a unit of level `i`, which includes those that go further."""
        return level >= i if i else level == 0

    def latencies_s(self, level: IntArray, n_bytes: FloatArray | IntArray) -> FloatArray:
        """Latency of each message; small messages have their own."""
        large, small, least = self.latencies_of(level)
        return large if self._model.plain else np.where(n_bytes <= -least, small, large)

    def latencies_of(self, level: IntArray) -> FloatArray:
        """Latencies of large and of small messages, and the size of small ones, negative."""
        return np.stack([self._model.alpha_s[level], self._model.small_alpha_s[level],
                         -self._model.small_bytes[level]])

    def seconds_per_byte(self, pairs: Pairs, level: IntArray, presence: FloatArray) -> FloatArray:
        """Inverse bandwidth of each message.

        Parameters
        ----------
        presence : ndarray
            Fraction of its time that the busier end spends on the message.
        """
        alone, flows, links, limits = self._model.beta_s_per_byte[level], [], [], []
        first_link = 0
        for i in range(len(self.levels)):
            crosses = self._crosses(level, i)
            if i:
                alone = np.where(crosses, np.maximum(alone, self._model.beta_s_per_byte[i]), alone)
            shared = self.levels[i].shared_links
            if not crosses.any() or np.isinf(shared):
                continue
            for ends in (pairs.senders, pairs.receivers):
                unit = ends[crosses] // self._model.inner[i]
                flows.append(np.flatnonzero(crosses))
                links.append(first_link + unit)
                limits.append(np.full(unit.max() + 1, shared / self._model.beta_s_per_byte[i]))
                first_link += len(limits[-1])
        if not flows:
            return alone
        return 1.0 / fair_rates(1.0 / alone, presence, np.concatenate(flows),
                                np.concatenate(links), np.concatenate(limits))


def fair_rates(unshared: FloatArray, weight: FloatArray, flow: IntArray, link: IntArray,
               capacity: FloatArray) -> FloatArray:
    """Max-min fair rates by progressive filling.

    The flows of the most loaded link get equal shares of it. Then the flows of the next link share
    its remaining capacity, and so on.

    Parameters
    ----------
    unshared, weight : ndarray
        [flows] rate of a flow that shares no link, and number of flows that it counts as.
    flow, link : ndarray
        [crossings] indices of a flow and of a link that it crosses.
    capacity : ndarray
        [links]
    """
    rate, left = unshared.copy(), capacity.astype(np.float64)
    open_ = np.ones(len(unshared), np.bool_)
    while open_.any():
        counted = open_[flow]
        load = np.bincount(link[counted], weight[flow[counted]], len(left))
        share = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        limit = unshared.copy()
        np.minimum.at(limit, flow[counted], share[link[counted]])
        full = open_ & (limit <= limit[open_].min() * (1 + 1e-12))
        rate[full] = limit[full]
        fixed = full[flow]
        left -= np.bincount(link[fixed], (weight * rate)[flow[fixed]], len(left))
        left = np.maximum(left, 0.0)
        open_ &= ~full
    return rate
