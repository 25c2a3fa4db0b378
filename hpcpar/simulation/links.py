"""The links that messages between ranks cross, and how fast messages that share them are."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.network.contention import NetworkModel
from hpcpar.machine.model import Machine
from hpcpar.plan.axis import IntArray
from hpcpar.schedule.waves import Pairs

FloatArray: TypeAlias = NDArray[np.floating]


class LinkRates:
    """Latencies and rates of messages between given ranks of a machine.

    Flows that leave (or enter) a unit of a level at the same time share its links, max-min fair.
    """

    def __init__(self, machine: Machine) -> None:
        self.levels = machine.levels
        self._model = NetworkModel(machine)
        self._beta = np.array([level.loaded_beta_s_per_byte for level in machine.levels])

    def crossed(self, pairs: Pairs) -> IntArray:
        """Index of the level that each message crosses."""
        level = self._model.between(pairs.senders, pairs.receivers)
        return np.broadcast_to(level, pairs.senders.shape)

    def nothing_left(self, ranks: int) -> list[IntArray]:
        """For each level, no bytes out of each of the units (the innermost are ranks)."""
        return [np.zeros(-(-ranks // int(size)), np.int64) for size in self._model.inner]

    def leave(self, pairs: Pairs, n_bytes: IntArray, left_bytes: list[IntArray]) -> int:
        """Adds messages to the bytes that have left each of the units, in place; returns the
        outermost level that one crosses.
        """
        level = self.crossed(pairs)
        for i, of_unit in enumerate(left_bytes):
            crosses = self._crosses(level, i)
            np.add.at(of_unit, pairs.senders[crosses] // self._model.inner[i], n_bytes[crosses])
        return int(level[n_bytes > 0].max(initial=0))

    def busy_s(self, left_bytes: list[IntArray]) -> list[FloatArray]:
        """How long the links of each of the units take for the bytes that leave it."""
        links = np.minimum([level.shared_links for level in self.levels], self._model.inner)
        return [n_bytes * beta / count
                for n_bytes, beta, count in zip(left_bytes, self._beta, links, strict=True)]

    @staticmethod
    def _crosses(level: IntArray, i: int) -> NDArray[np.bool_]:
        """Messages that leave a unit of level `i`: whatever goes further does, too."""
        return level >= i if i else level == 0

    def latencies_s(self, level: IntArray, n_bytes: IntArray) -> FloatArray:
        """Latency of each message: that of small messages, up to the size where they end."""
        alpha = np.array([x.alpha_s for x in self.levels])
        small = np.array([x.alpha_s if x.small_alpha_s is None else x.small_alpha_s
                          for x in self.levels])
        upto = np.array([x.small_bytes for x in self.levels])
        return np.where(n_bytes <= upto[level], small[level], alpha[level])

    def seconds_per_byte(self, pairs: Pairs, level: IntArray, presence: FloatArray) -> FloatArray:
        """Inverse bandwidth of each message.

        Parameters
        ----------
        presence : ndarray
            Part of the time that its sender, or its receiver, spends on the message.
        """
        alone, flows, links, limits = self._beta[level], [], [], []
        known = 0
        for i in range(len(self.levels)):
            far = self._crosses(level, i)
            if i:  # whatever goes further crosses this level, too
                alone = np.where(far, np.maximum(alone, self._beta[i]), alone)
            shared = self.levels[i].shared_links
            if not far.any() or np.isinf(shared):
                continue
            for ends in (pairs.senders, pairs.receivers):
                unit = ends[far] // self._model.inner[i]
                flows.append(np.flatnonzero(far))
                links.append(known + unit)
                limits.append(np.full(unit.max() + 1, shared / self._beta[i]))
                known += len(limits[-1])
        if not flows:
            return alone
        return 1.0 / fair_rates(1.0 / alone, presence, np.concatenate(flows),
                                np.concatenate(links), np.concatenate(limits))


def fair_rates(most: FloatArray, weight: FloatArray, flow: IntArray, link: IntArray,
               capacity: FloatArray) -> FloatArray:
    """Max-min fair rates by progressive filling: the flows of the fullest link get equal shares of
    it, then those of the next one, of what is left.

    Parameters
    ----------
    most : ndarray
        [flows] rate of a flow that shares nothing.
    weight : ndarray
        [flows] how many flows it counts for.
    flow, link : ndarray
        Which flow crosses which link, side by side.
    capacity : ndarray
        [links]
    """
    rate, left, open_ = most.copy(), capacity.astype(np.float64), np.ones(len(most), np.bool_)
    while open_.any():
        counted = open_[flow]
        load = np.bincount(link[counted], weight[flow[counted]], len(left))
        share = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        limit = most.copy()
        np.minimum.at(limit, flow[counted], share[link[counted]])
        full = open_ & (limit <= limit[open_].min() * (1 + 1e-12))
        rate[full] = limit[full]
        gone = full[flow]
        left -= np.bincount(link[gone], (weight * rate)[flow[gone]], len(left))
        left = np.maximum(left, 0.0)
        open_ &= ~full
    return rate
