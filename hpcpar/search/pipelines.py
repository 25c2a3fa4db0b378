"""Decides which pipelines may be fast enough to price, by a lower bound of their time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.price_family import price_family
from hpcpar.plan.config import Config
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.plan.stages import cuts, longest
from hpcpar.schedule.steps import PASSES
from hpcpar.search.candidates import microbatches_tried, stages_and_ranks
from hpcpar.search.task import PlanningTask


def maybe_faster(task: PlanningTask, strategies: Sequence[str], fastest_s: float) -> list[str]:
    """The named pipelines whose lower bound is at most `fastest_s`.

    The passes of a micro-batch through a layer take the same time in any stage. Stages that are
    balanced by these times have the shortest longest stage. This stage computes every micro-batch;
    in GPipe's order it also waits for one pass through all other stages.
    """
    tried = [(strategy, number) for strategy in strategies
             for number in microbatches_tried(task, strategy)]
    if not tried:
        return []
    shapes = np.array([stages_and_ranks(strategy, task.ranks) for strategy, _ in tried])
    numbers = np.array([number for _, number in tried])
    batches = np.maximum(1, task.batch // numbers)
    seconds = np.zeros((len(task.network.layers), len(tried)))
    for batch in np.unique(batches).tolist():
        cases = batches == batch
        seconds[:, cases] = _layer_s(task, batch, Config(n=shapes[cases, 1]))
    pass_s = seconds.sum(axis=0)
    borders = cuts(task.network)
    longest_s = np.array([longest(borders, int(count), seconds[:, i].tolist())
                          for i, count in enumerate(shapes[:, 0])])
    gpipe = task.plan_options.get("order", PipelineOrder.GPIPE) == PipelineOrder.GPIPE
    bounds_s = longest_s * numbers + (pass_s - longest_s) * gpipe
    promising = {strategy for (strategy, _), bound_s in zip(tried, bounds_s, strict=True)
                 if bound_s <= fastest_s}
    return [strategy for strategy in strategies if strategy in promising]


def _layer_s(task: PlanningTask, batch: int, config: Config) -> NDArray[np.float64]:
    """Seconds of a batch's passes through each layer: [layers, plans of the family]."""
    plan = Plan(task.spec, task.ranks, batch, "pipeline",
                {layer.name: config for layer in task.network.layers},
                **(task.plan_options | {"microbatches": 1}))
    costs = price_family(task.network, plan, task.machine, **task.price_options)
    layer_s = {layer.name: np.zeros(np.shape(config.n)) for layer in task.network.layers}
    for step, price in costs.pairs:
        if step.phase in PASSES:
            layer_s[step.layer] += price.seconds
    return np.array(list(layer_s.values()))
