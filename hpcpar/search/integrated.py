"""The strategy ``integrated``: Gholami's choice of the grid, and of model or domain parallelism."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.papers.gholami_choice import HockneyLink, choose
from hpcpar.plan.channel_cuts import integrated
from hpcpar.plan.plan import Plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.plan.strategy import Strategy, StrategyRequest
from hpcpar.search.candidates import Candidate, PlanningTask, of_plan
from hpcpar.search.searches import searched

NAME = "integrated"


@searched(Strategy(
    NAME, "model or domain parallel by layer",
    "Gholami's choice of the grid, and of image parts or channels for each layer, by Eq 9",
    cuts=("samples", "parts")))
def plan_integrated(task: PlanningTask) -> Candidate:
    """The plan with the least communication by Eq 9, priced like any other.

    alpha and beta come from the level that all ranks span.

    Raises
    ------
    InputError
        The network has no matrix product to cut.
    """
    network, machine = task.network, task.machine
    if not network.matmul_layers:
        raise InputError(f"strategy '{NAME}': network '{network.name}' has no convolution or fully "
                         "connected layer; use --strategy data")
    level = machine.levels[machine.level_index_for(task.ranks, task.ranks)]
    item_bytes = PRECISIONS[task.options.get("precision", Plan.precision)].item_bytes
    choice = choose(network, task.ranks, task.batch,
                    HockneyLink(level.alpha_s, item_bytes * level.loaded_beta_s_per_byte))
    request = StrategyRequest(network, task.ranks, (choice.pr, choice.pc), task.gather, "inner")
    plan = Plan(task.spec, task.ranks, task.batch, NAME, integrated(request, choice.domain),
                machine=machine, **task.plan_options)
    return of_plan(task, plan)
