"""A rank's role for the weights of each layer: whether it sums gradients and updates weights."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan, Synchronization
from hpcpar.schedule.steps import Schedule


@dataclass(frozen=True)
class WeightRole:
    """A rank's role in the update of a layer's weights: whether ranks sum their gradient
    (`reduced`), and whether this rank updates.

    A rank does not update if a parameter server or the caller does, or without training.
    """

    reduced: bool
    updates: bool


def weight_roles(network: Network, plan: Plan, schedule: Schedule | None,
                 rank: int) -> dict[str, WeightRole]:
    """A rank's role for each layer with weights or buffers, by the layer's name."""
    trains = schedule is not None and not network.loss.outside
    roles = {layer.name: WeightRole(False, trains and layer.learns) for layer in network.stateful}
    for step in schedule.comms if schedule is not None else ():
        updates = trains
        if step.covers and plan.synchronization is Synchronization.SERVER:
            assert step.group is not None
            holds = step.source.holds(rank)
            updates = holds and step.group.members(rank)[step.root] == rank
        for name in step.covers:
            roles[name] = WeightRole(True, updates)
    return roles
