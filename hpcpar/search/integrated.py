"""Decides the grid of ``integrated``, and model or domain parallelism, by Gholami's Eq 9."""

from __future__ import annotations

from hpcpar.errors import InputError
from hpcpar.papers.gholami_choice import GridChoice, HockneyLink, choose, on_grid
from hpcpar.plan.channel_cuts import integrated
from hpcpar.plan.plan import Plan
from hpcpar.plan.precision import PRECISIONS
from hpcpar.plan.strategy import STRATEGIES, Configs, Grid, Strategy, StrategyRequest
from hpcpar.search.candidates import Candidate, of_plan
from hpcpar.search.searches import searched
from hpcpar.search.task import PlanningTask

NAME = "integrated"


def link_of(task: PlanningTask) -> HockneyLink:
    """alpha and beta (per item) of the level that all ranks span."""
    level = task.machine.levels[task.machine.level_index_for(task.ranks, task.ranks)]
    item_bytes = PRECISIONS[task.options.get("precision", Plan.precision)].item_bytes
    return HockneyLink(level.alpha_s, item_bytes * level.loaded_beta_s_per_byte)


@searched(Strategy(
    f"{NAME}[:PRxPC]", "model or domain parallel by layer",
    "Gholami's choice of image parts or channels for each layer, by Eq 9, on the given grid or the "
    "best one", cuts=("samples", "parts")))
def plan_integrated(task: PlanningTask, grid: Grid = ()) -> Candidate:
    """The plan with the least communication by Eq 9, priced like any other.

    Raises
    ------
    InputError
        The network has no matrix product to cut.
    """
    network, entry = task.network, STRATEGIES[NAME]
    if not network.matmul_layers:
        raise InputError(f"strategy '{NAME}': network '{network.name}' has no convolution or fully "
                         "connected layer; use --strategy data")
    link = link_of(task)
    if grid:
        pr, pc = grid
        found = on_grid(network, pr, pc, task.batch, link)
    else:
        found = choose(network, task.ranks, task.batch, link, task.most_parts)
    plan = Plan(task.spec, task.ranks, task.batch, entry.on(grid), configs_of(task, found),
                machine=task.machine, **task.plan_options)
    return of_plan(task, plan)


def configs_of(task: PlanningTask, choice: GridChoice) -> Configs:
    """The configuration of every layer for a grid and its cuts."""
    request = StrategyRequest(task.network, task.ranks, (choice.pr, choice.pc), task.gather,
                              "inner")
    return integrated(request, choice.cut_by("domain"))
