"""Decides the borders of pipeline stages, by the layers' compute times on a machine."""

from __future__ import annotations

from dataclasses import replace

from hpcpar.cost.price_family import Costs
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.plan.stages import stages


def balanced(network: Network, plan: Plan, costs: Costs) -> Plan:
    """Move the borders between a pipeline's stages, by the compute times in the plan's costs.

    The borders in a named plan come from flops alone. With small micro-batches, a fully connected
    layer takes longer, because it has to read its weights. All stages have the same number of ranks
    and a single configuration, so a layer takes the same time in any stage.

    Returns
    -------
    Plan
        The same object if the stages do not change.
    """
    stage_configs = {config.first: config for config in plan.configs.values()}
    if len(stage_configs) == 1:
        return plan
    layer_s = costs.seconds_of_layers()
    firsts = sorted(stage_configs)
    stage_of = stages(network, len(firsts),
                      [float(layer_s[layer.name]) for layer in network.layers])
    configs = {name: stage_configs[firsts[stage]] for name, stage in stage_of.items()}
    return plan if configs == plan.configs else replace(plan, configs=configs)
