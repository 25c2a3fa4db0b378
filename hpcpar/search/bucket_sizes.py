"""Finds the size of gradient buckets that gives the fastest iteration.

Large buckets pay latency once, small ones start early, and other messages compete with both. The
search prices all sizes with different buckets at once under the timeline, so its choice is optimal.
A separate choice of each boundary would gain at most about 1% (`bench/buckets.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hpcpar.cost.network.algorithm_choice import chooser
from hpcpar.cost.price_family import Costs, laid_out
from hpcpar.cost.step_prices import StepPrice, StepPricer
from hpcpar.cost.timeline.clock import later
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Floats
from hpcpar.plan.plan import Plan
from hpcpar.schedule.buckets import closes, gradient_bytes, summed
from hpcpar.schedule.one_weird_trick import switch
from hpcpar.schedule.overlap import Emitter
from hpcpar.schedule.steps import Phase
from hpcpar.schedule.weights import bucket_sum


def fastest_sizes(network: Network, plan: Plan, machine: Machine, costs: Costs
                  ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The fastest size of buckets for each plan of a family, and the time of an iteration.

    Among equally fast sizes, it prefers the one whose sums end first, which leaves most room for a
    slower network.

    Parameters
    ----------
    costs : Costs
        The costs of the plan without buckets (size 0).
    """
    sizes, ends = _sizes(network, plan)
    seconds, sums_end_s = times(network, plan, machine, costs, ends)
    best = np.lexsort((sums_end_s, seconds), axis=0)[0]
    return sizes[best], seconds.min(axis=0)


def layers_in_buckets(network: Network, plan: Plan) -> list[Layer]:
    """The layers that may share buckets: with several FC passes, only layers before the switch."""
    last = switch(network) if plan.fc_passes > 1 else len(network.layers)
    return summed(plan, network.layers[1:last])


def _sizes(network: Network, plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The sizes that give different buckets, the largest first, and their ends [layers, sizes].

    A bucket contains consecutive layers, so every candidate size is a sum over such layers.
    """
    layers = layers_in_buckets(network, plan)
    sums = np.cumsum([0, *(gradient_bytes(network, plan, layer) for layer in layers)])
    sizes = np.unique(np.abs(sums[:, None] - sums))[::-1]
    ends = np.array(closes(network, plan, layers, sizes), np.bool_).reshape(-1, len(sizes))
    _, first = np.unique(np.packbits(ends, axis=0), axis=1, return_index=True)
    kept = np.sort(first)
    return sizes[kept], ends[:, kept]


def times(network: Network, plan: Plan, machine: Machine, costs: Costs, ends: NDArray[np.bool_]
          ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The time of an iteration for each division into buckets, and the end of its last sum.

    `ends`, [layers, divisions], is true where a layer of `layers_in_buckets` is the last of its
    bucket. The results, in seconds, are [divisions, plans of the family].
    """
    layers = layers_in_buckets(network, plan)
    steps, prices = list(costs.schedule.steps), list(costs.prices)
    sums = {step.layer: step for step in costs.schedule.comms if step.phase is Phase.GRADIENT}
    places = {name: step.index for name, step in sums.items()}
    needed_by = np.array([sums[layer.name].needed_by if layer.name in sums else 0
                          for layer in layers])
    choose = chooser(costs.networks[plan.machine or machine], plan)
    emitter = Emitter(network, plan, choose)
    pricer = StepPricer(network, plan, machine, costs.network_model, costs.out.edges)
    items_before = np.cumsum([0, *(layer.parameters(network.input_shape(layer))
                                   for layer in layers)])
    divisions = np.shape(ends)[-1]
    first = np.zeros(divisions, np.int64)  # first layer of the open bucket
    for k, (layer, end) in enumerate(zip(layers, ends, strict=True)):
        place = places.get(layer.name)
        if place is not None and not np.all(end & (first == k)):
            bucket_items = np.where(end, items_before[k + 1] - items_before[first], 1)
            move = bucket_sum(emitter, layer, bucket_items[:, None])
            assert move is not None
            price = pricer.price(move)
            # the update of the bucket's first layer waits; without overlap, the step that follows
            by = np.where(needed_by[first] > place, needed_by[first], needed_by[k])
            prices[place] = StepPrice(np.where(end[:, None], price.seconds, 0.0),
                                      level=price.level)
            steps[place] = replace(sums[layer.name], needed_by=cast("int", by[:, None]))
        first = np.where(end, k + 1, first)
    line = laid_out(machine, plan, steps, prices)
    seconds = np.maximum(line.total_s, costs.io_s)
    sums_end_s: Floats = 0.0
    for place in places.values():
        sums_end_s = later(sums_end_s, line.spans[place].end_s)
    shape = np.broadcast_shapes(seconds.shape, (divisions, 1))
    return np.broadcast_to(seconds, shape), np.broadcast_to(sums_end_s, shape)
