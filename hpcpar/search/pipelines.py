"""A lower bound of the time of pipelines: most of them need no price."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcpar.cost.price_family import price_family
from hpcpar.plan.config import Config, Floats
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.schedule.steps import PASSES
from hpcpar.search.candidates import PlanningTask, microbatches_tried, stages_and_ranks


def maybe_faster(task: PlanningTask, strategies: Sequence[str], fastest_s: float) -> list[str]:
    """The named pipelines for which a lower bound leaves open that they are faster than
    `fastest_s`.

    The passes of a micro-batch through all layers, cut by samples over the ranks of a stage, take
    the same time for any cut into stages. The stage that takes longest takes at least the mean,
    for every micro-batch; in GPipe's order it also stands still for one pass of all others.
    """
    tried = [(strategy, number) for strategy in strategies
             for number in microbatches_tried(task, strategy)]
    if not tried:
        return []
    shapes = np.array([stages_and_ranks(strategy, task.ranks) for strategy, _ in tried])
    numbers = np.array([number for _, number in tried])
    config = Config(n=shapes[:, 1])
    plan = Plan(task.spec, task.ranks, np.maximum(1, task.batch // numbers), "pipeline",
                {layer.name: config for layer in task.network.layers},
                **(task.plan_options | {"microbatches": 1}))
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    pass_s: Floats = np.zeros(len(tried))
    for entry, price in zip(costs.entries, costs.steps, strict=True):
        if entry.step.phase in PASSES:
            pass_s = pass_s + price.seconds
    ahead = (shapes[:, 0] - 1) * (plan.order is PipelineOrder.GPIPE)
    least_s = pass_s * (numbers + ahead) / shapes[:, 0]
    open_ = {strategy for (strategy, _), at_least in zip(tried, least_s, strict=True)
             if at_least <= fastest_s}
    return [strategy for strategy in strategies if strategy in open_]
