"""Decides whether a rank sums the gradients and updates the weights of each layer."""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.steps import HOST, Schedule

#: A server has the only state of the optimizer.
SERVERS = (Synchronization.SERVER, Synchronization.SERVER_HOST)


def weight_roles(network: Network, plan: Plan, schedule: Schedule | None,
                 rank: int) -> tuple[set[str], set[str]]:
    """The layers whose gradient ranks sum, and the layers whose weights this rank updates.

    A rank does not update if a parameter server, a host or the caller does, or without training.
    """
    trains = schedule is not None and not network.loss.outside
    summed: set[str] = set()
    updated = {layer.name for layer in network.stateful if trains and layer.learns}
    for step in schedule.comms if schedule is not None else ():
        summed.update(step.covers)
        if step.covers and plan.synchronization in SERVERS:
            assert step.group is not None
            if (step.algorithm == HOST or not step.source.holds(rank)
                    or step.group.members(rank)[step.root] != rank):
                updated.difference_update(step.covers)
    return summed, updated
