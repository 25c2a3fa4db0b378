"""The layer-wise search of OptCNN and DeePa: a configuration for every layer.

`plan_layerwise` has the order of its steps: cost tables, elimination (OptCNN, Algorithm 1), and
refinement under the timeline.
"""

from __future__ import annotations

from typing import NamedTuple

from hpcpar.errors import InputError
from hpcpar.plan.plan import Overlap
from hpcpar.search.candidates import Candidate, PlanningTask, best_of, of_plan
from hpcpar.search.local_search import improve
from hpcpar.search.table_search import HIDDEN, Search, SearchResult

#: Doublings of the ranks that are tried where nothing fits.
DOUBLINGS = 4


class LayerwisePlan(NamedTuple):
    """The layer-wise plan, and how it was found.

    Attributes
    ----------
    result : SearchResult
        The optimum of the plain sum, before the refinement.
    """

    candidate: Candidate
    result: SearchResult
    search: Search


def plan_layerwise(task: PlanningTask) -> LayerwisePlan:
    """Plans layer by layer: the optimum of the cost tables, refined under the timeline.

    1. Cost tables of all layers and edges (tC, tS and tX).
    2. Node and edge elimination: the optimum of their plain sum (OptCNN, Eq 1), within the device's
       memory. Without overlap this sum is the time of an iteration.
    3. With overlap, the same with fractions of the gradient reductions hidden. The optima are
       priced under the timeline, and the fastest that fits is taken.
    4. Local search from there: single layers change their configurations.

    Raises
    ------
    InputError
        Accounting or inference that the tables do not cover.
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
    paper = task.options.get("accounting", "schedule") != "schedule"
    if paper or not task.options.get("training", True):
        raise InputError("strategy 'layerwise' searches for training as it is executed; leave out "
                         "--accounting paper, --forward-only, or name a strategy")


def _search(task: PlanningTask) -> Search:
    return Search(task.network, task.spec, task.ranks, task.batch, task.machine,
                  contention=task.options.get("contention"), gamma=task.options.get("gamma", 1.0),
                  **task.plan_options)


def _fastest_with_hidden(task: PlanningTask, search: Search, result: SearchResult) -> Candidate:
    """The fastest, under the timeline, of the optima with a fraction of the gradients hidden.

    Fractions 0, 1/2 and 1 come first, then quarters and eighths around the best.
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
            neighbour = tried.get(best + 2 * side)
            # one plan that is optimal at two fractions is optimal at all between them
            if neighbour is not None and neighbour is not tried[best]:
                tried[best + side] = optimum(best + side)
    return best_of(tried.values())


def least_memory(task: PlanningTask) -> tuple[int, int | None]:
    """The least memory of any layer-wise plan, and the number of ranks on which one fits.

    Returns
    -------
    int
        Bytes of the largest rank.
    int or None
        The number of ranks, doubled until a plan fits; None where `DOUBLINGS` do not suffice.
    """
    def least(ranks: int) -> int:
        search = Search(task.network, task.spec, ranks, task.batch, task.machine,
                        **task.plan_options)
        return search.memory_bytes(search.smallest().plan)

    here = least(task.ranks)
    for doubling in range(1, DOUBLINGS + 1):
        more = task.ranks << doubling
        if least(more) <= task.machine.device.memory_bytes:
            return here, more
    return here, None
