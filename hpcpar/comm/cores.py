"""The cores that a job's ranks may run on."""

from __future__ import annotations

import os

from hpcpar.comm.world import World
from hpcpar.machine.model import NodeCores


def fullest_node(world: World, device: str) -> NodeCores:
    """The node with the most ranks per core; unknown on GPUs. Every rank must call this.

    Containers on one machine share its cores, so they count as one node. A rank counts as one core,
    even if its BLAS uses several threads.
    """
    if device != "cpu":
        return NodeCores()
    ranks: dict[str, int] = {}
    cores: dict[str, frozenset[int]] = {}
    of_rank = world.boot_id, frozenset(os.sched_getaffinity(0))
    for node, allowed in world.comm.allgather(of_rank):
        ranks[node] = ranks.get(node, 0) + 1
        cores[node] = cores.get(node, frozenset()) | allowed
    node = max(ranks, key=lambda name: ranks[name] / len(cores[name]))
    return NodeCores(ranks[node], len(cores[node]))
