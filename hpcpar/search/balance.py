"""Pipeline stages that take nearly the same time on a machine."""

from __future__ import annotations

from dataclasses import replace

from hpcpar.cost.price_family import Costs
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.plan.stages import stages


def balanced(network: Network, plan: Plan, costs: Costs) -> Plan:
    """Cuts a named pipeline anew, by the compute times in its own price.

    The first cut knows no machine and counts flops; with small micro-batches, a fully connected
    layer takes longer because its weights have to be read. All stages have equally many ranks and
    one configuration each, so a layer takes the same time in any stage.

    Returns
    -------
    Plan
        The same object where the stages do not change.
    """
    of_stage = {config.first: config for config in plan.configs.values()}
    if len(of_stage) == 1:
        return plan
    seconds_of = costs.seconds_of_layers()
    seconds = [float(seconds_of[layer.name]) for layer in network.layers]
    firsts = sorted(of_stage)
    stage_of = stages(network, len(firsts), seconds)
    configs = {name: of_stage[firsts[stage]] for name, stage in stage_of.items()}
    return plan if configs == plan.configs else replace(plan, configs=configs)
