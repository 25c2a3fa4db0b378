"""Machines with fewer cores than ranks, and who shares which core."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend


class Crowd(NamedTuple):
    """Ranks of a machine, and how many of them compute at once: as many as cores, if every core has
    as many ranks as the others.
    """

    ranks: int
    at_once: float


def cores(allowed: Iterable[frozenset[int]]) -> list[int]:
    """A core for each of a machine's ranks, of those that it may run on: the one that fewest of the
    ranks before it have.
    """
    taken = Counter[int]()
    out = []
    for some in allowed:
        out.append(min(sorted(some), key=lambda core: taken[core]))
        taken[out[-1]] += 1
    return out


def own_cores(world: World) -> dict[int, int]:
    """The cores of all ranks of this rank's machine, also of nodes that are containers of it. Every
    rank must call it.
    """
    return {rank: core for rank, (kernel, core) in enumerate(_places(world))
            if kernel == world.kernel}


def crowded(world: World, backend: Backend) -> Crowd:
    """The fullest of the machines that have fewer cores than ranks; nobody where there is none.
    Every rank must call it.

    Nodes that are containers of one machine share its cores. Ranks whose BLAS has several threads
    are counted as one core each, and ranks on GPUs not at all.
    """
    if backend.name != "cpu":
        return Crowd(0, 0.0)
    crowds = []
    for ranks in _machines(world).values():
        if len(ranks) > len(frozenset().union(*ranks.values())):
            crowds.append(Crowd(len(ranks),
                                len(ranks) / max(Counter(cores(ranks.values())).values())))
    return max(crowds, default=Crowd(0, 0.0))


def on_each_core(world: World, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[cores, ...] sums over the ranks of a core. Every rank must call it."""
    together: dict[tuple[str, int], NDArray[np.float64]] = {}
    for place, each in zip(_places(world), world.comm.allgather(values), strict=True):
        together[place] = together.get(place, 0.0) + each
    return np.stack(list(together.values()))


def _places(world: World) -> list[tuple[str, int]]:
    """Every rank's machine and core."""
    found = {rank: (kernel, core) for kernel, ranks in _machines(world).items()
             for rank, core in zip(ranks, cores(ranks.values()), strict=True)}
    return [found[rank] for rank in range(world.size)]


def _machines(world: World) -> dict[str, dict[int, frozenset[int]]]:
    """Of every machine the ranks, with the cores that they may run on."""
    out: dict[str, dict[int, frozenset[int]]] = {}
    for rank, (kernel, allowed) in enumerate(world.comm.allgather((world.kernel, frozenset(os.sched_getaffinity(0))))):
        out.setdefault(kernel, {})[rank] = allowed
    return out
