"""Stages of a pipeline that take nearly as long as each other on a machine."""

from __future__ import annotations

from dataclasses import replace

from hpcpar.cost.price_family import Costs
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.plan.stages import stages


def balanced(network: Network, plan: Plan, costs: Costs) -> Plan:
    """A named pipeline cut anew by what its layers compute, by its own price; a plan whose stages
    are those already stays the same object.

    Its stages have equally many ranks and one configuration each, so that a layer takes as long in
    any. Its first cut knows no machine: it takes a fully connected layer for its flops, where on
    small micro-batches reading the weights takes longer.
    """
    of_stage = {config.first: config for config in plan.configs.values()}
    if len(of_stage) == 1:
        return plan
    firsts, seconds = sorted(of_stage), costs.compute_of
    place = stages(network, len(firsts), [float(seconds[layer.name]) for layer in network.layers])
    configs = {name: of_stage[firsts[stage]] for name, stage in place.items()}
    return plan if configs == plan.configs else replace(plan, configs=configs)
