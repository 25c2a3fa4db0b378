"""Machines with fewer cores than ranks, and who shares which core."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend


class Crowd(NamedTuple):
    """Ranks of a machine, and how many of them compute at once: as many as cores, if every core has as many ranks as the others."""

    ranks: int
    at_once: float


def cores(allowed: Iterable[frozenset[int]]) -> list[int]:
    """A core for each of a machine's ranks, of those that it may run on: the one that fewest of the ranks before it have."""
    taken = Counter[int]()
    out = []
    for some in allowed:
        out.append(min(sorted(some), key=lambda core: taken[core]))
        taken[out[-1]] += 1
    return out


def own_cores(world: World) -> dict[int, int]:
    """The cores of all ranks of this rank's machine, also of nodes that are containers of it. Every rank must call it."""
    machine = {rank: allowed for rank, (kernel, allowed) in enumerate(_allowed(world)) if kernel == world.kernel}
    return dict(zip(machine, cores(machine.values()), strict=True))


def crowded(world: World, backend: Backend) -> Crowd:
    """The fullest of the machines that have fewer cores than ranks; nobody where there is none. Every rank must call it.

    Nodes that are containers of one machine share its cores. Ranks whose BLAS has several threads are counted as one core each, and
    ranks on GPUs not at all.
    """
    if backend.name != "cpu":
        return Crowd(0, 0.0)
    machines: dict[str, list[frozenset[int]]] = {}
    for kernel, allowed in _allowed(world):
        machines.setdefault(kernel, []).append(allowed)
    full = [each for each in machines.values() if len(each) > len(set().union(*each))]
    return max((Crowd(len(each), len(each) / max(Counter(cores(each)).values())) for each in full), default=Crowd(0, 0.0))


def _allowed(world: World) -> list[tuple[str, frozenset[int]]]:
    """Every rank's machine, and the cores that it may run on."""
    return list(world.comm.allgather((world.kernel, frozenset(os.sched_getaffinity(0)))))
