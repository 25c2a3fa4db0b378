"""Decides a configuration for each layer, by the search of OptCNN and DeePa.

`plan_layerwise` lists its steps: cost tables, elimination (OptCNN, Algorithm 1), and refinement
under the timeline.
"""

from __future__ import annotations

from typing import NamedTuple

from hpcpar.errors import InputError
from hpcpar.plan.plan import Overlap
from hpcpar.search.candidates import Candidate, best_of, of_plan
from hpcpar.search.local_search import improve
from hpcpar.search.table_search import HIDDEN, Search, SearchResult
from hpcpar.search.task import PlanningTask

#: Number of times that the ranks are doubled if no plan fits.
DOUBLINGS = 4


class LayerwisePlan(NamedTuple):
    """The layer-wise plan, its search, and the optimum of the plain sum before the refinement."""

    candidate: Candidate
    result: SearchResult
    search: Search


def plan_layerwise(task: PlanningTask) -> LayerwisePlan:
    """Plan layer by layer: find the optimum of the cost tables, and refine it under the timeline.

    1. Make cost tables of all layers and edges (tC, tS and tX).
    2. Find the optimum of their plain sum within the device's memory, by node and edge elimination
       (OptCNN, Eq 1). Without overlap, this sum is the time of an iteration.
    3. With overlap, repeat this with fractions of the gradient reductions hidden. Price the optima
       under the timeline, and choose the fastest that fits.
    4. Improve it by local search: single layers change their configurations.

    Raises
    ------
    InputError
        The tables do not cover the accounting.
    """
    _check(task)
    task.tell("layer by layer: cost tables")
    search = _search(task)
    result = search.best()
    if search.plan.overlap is Overlap.NONE:
        return LayerwisePlan(of_plan(task, result.plan), result, search)
    start = _fastest_with_hidden(task, search, result)
    return LayerwisePlan(improve(search, start), result, search)


def _check(task: PlanningTask) -> None:
    if task.options.get("accounting", "schedule") != "schedule":
        raise InputError("strategy 'layerwise' plans only with --accounting schedule; leave out "
                         "--accounting paper, or name a strategy")


def _search(task: PlanningTask) -> Search:
    return Search(task.network, task.spec, task.ranks, task.batch, task.machine,
                  contention=task.options.get("contention"), gamma=task.options.get("gamma", 1.0),
                  most_parts=task.most_parts, networks=task.networks, training=task.training,
                  **task.plan_options)


def _fastest_with_hidden(task: PlanningTask, search: Search, result: SearchResult) -> Candidate:
    """The optimum that is fastest under the timeline, over fractions of hidden gradients.

    It tries fractions 0, 1/2 and 1 first, then quarters and eighths around the best.
    """
    by_configs: dict[tuple[object, ...], Candidate] = {}

    def optimum(eighths: int) -> Candidate:
        plan = search.best(hidden=HIDDEN[eighths]).plan if eighths else result.plan
        key = tuple(config.key for config in plan.configs.values())
        if key not in by_configs:
            task.tell(f"layer by layer: plan {len(by_configs) + 1} under the timeline")
            by_configs[key] = of_plan(task, plan)
        return by_configs[key]

    tried = {eighths: optimum(eighths) for eighths in (0, 4, 8)}
    for step in (2, 1):
        best = min(tried, key=lambda eighths: tried[eighths].order)
        for side in (-step, step):
            neighbor = tried.get(best + 2 * side)
            # a plan that is optimal at two fractions is optimal at all fractions between them
            if neighbor is not None and neighbor is not tried[best]:
                tried[best + side] = optimum(best + side)
    return best_of(tried.values())


def least_memory(task: PlanningTask) -> tuple[int, int | None]:
    """The least memory of any layer-wise plan (bytes), and a number of ranks on which one fits.

    The ranks are doubled until a plan fits; the number is None if `DOUBLINGS` do not suffice.
    """
    def least(ranks: int) -> int:
        search = Search(task.network, task.spec, ranks, task.batch, task.machine,
                        most_parts=task.most_parts, networks=task.networks,
                        training=task.training, **task.plan_options)
        return search.memory_bytes(search.smallest().plan)

    least_bytes = least(task.ranks)
    for doubling in range(1, DOUBLINGS + 1):
        more = task.ranks << doubling
        if least(more) <= task.machine.device.memory_bytes:
            return least_bytes, more
    return least_bytes, None
