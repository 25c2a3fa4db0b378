"""Cores that the ranks of a job may run on."""

from __future__ import annotations

import os

from hpcpar.comm.world import World
from hpcpar.machine.cores import NodeCores


def fullest_node(world: World, device: str) -> NodeCores:
    """The node with most ranks per core; unknown on GPUs. Every rank must call it.

    Containers of one machine share its cores and count as one node. A rank whose BLAS has several
    threads counts as one core.
    """
    if device != "cpu":
        return NodeCores()
    ranks: dict[str, int] = {}
    cores: dict[str, frozenset[int]] = {}
    here = world.boot_id, frozenset(os.sched_getaffinity(0))
    for node, allowed in world.comm.allgather(here):
        ranks[node] = ranks.get(node, 0) + 1
        cores[node] = cores.get(node, frozenset()) | allowed
    node = max(ranks, key=lambda name: ranks[name] / len(cores[name]))
    return NodeCores(ranks[node], len(cores[node]))
