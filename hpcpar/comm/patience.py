"""How a rank spends the time between two looks at what it waits for."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import NamedTuple

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend

#: A waiting rank offers its core to others after every fruitless poll, and after so many of them it sleeps between polls.
#: That is many times longer than a sleep: else a rank that slept makes its partner sleep, and so on through all rounds.
YIELDS = 1000
#: With more ranks than cores, where each of those polls takes time from whoever is waited for, and it sleeps soon.
YIELDS_IN_A_CROWD = 50
#: The shortest sleep and the longest (s).
SHORT_S, LONG_S = 2e-5, 1e-3
#: A sleep over the time in which nothing has come: a rank with little to do in a plan leaves its core to those that have more.
PART, PART_IN_A_CROWD = 1 / 50, 1 / 16


class Crowd(NamedTuple):
    """Ranks of a machine, and the cores that they may run on."""

    ranks: int
    cores: int


def crowded(world: World, backend: Backend) -> Crowd:
    """The fullest of the machines that have fewer cores than ranks; nobody where there is none. Every rank must call it.

    Nodes that are containers of one machine share its cores. Ranks whose BLAS has several threads are counted as one core each, and
    ranks on GPUs not at all.
    """
    if backend.name != "cpu":
        return Crowd(0, 0)
    cores: dict[str, set[int]] = {}
    ranks = Counter[str]()
    for kernel, some in world.comm.allgather((world.kernel, os.sched_getaffinity(0))):
        cores.setdefault(kernel, set()).update(some)
        ranks[kernel] += 1
    machines = [Crowd(count, len(cores[kernel])) for kernel, count in ranks.items()]
    return max((machine for machine in machines if machine.ranks > machine.cores), default=Crowd(0, 0))


class Patience:
    """Pauses between polls.

    Parameters
    ----------
    crowd : bool
        There are more ranks than cores.
    """

    def __init__(self, crowd: bool) -> None:
        self._yields = YIELDS_IN_A_CROWD if crowd else YIELDS
        self._part = PART_IN_A_CROWD if crowd else PART

    def yields(self, polls: int) -> bool:
        """Offer the core to others after a fruitless poll; False if there were so many that it is time to sleep."""
        if polls >= self._yields:
            return False
        # free where a core is idle; with more ranks than cores, the rank that is waited for runs at once
        os.sched_yield()
        return True

    def sleep(self, idle_s: float) -> None:
        """Sleep, the longer the longer nothing has come."""
        time.sleep(min(LONG_S, max(SHORT_S, self._part * idle_s)))
