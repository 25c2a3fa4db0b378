"""Automatic choice: prices every named strategy and the layer-wise plan, the best first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import entry_of, parse
from hpcpar.plan.strategy import STRATEGIES, Strategy, grid_sizes
from hpcpar.search import integrated  # noqa: F401 - registers its strategy
from hpcpar.search.candidates import (
    Candidate,
    PlanningTask,
    alone,
    best_of,
    in_order,
    of_plan,
    priced,
)
from hpcpar.search.fit import with_variations
from hpcpar.search.layerwise import plan_layerwise
from hpcpar.search.local_search import improve
from hpcpar.search.pipelines import maybe_faster
from hpcpar.search.searches import SEARCHES, searched
from hpcpar.search.table_search import SearchResult


def strategies_to_try(network: Network, ranks: int, machine: Machine) -> list[str]:
    """Named strategies worth pricing for this network and machine.

    Mixed groups are tried in both placements where the machine has several levels.
    """
    has = {"images": any(len(network.shapes[layer.name]) > 1 for layer in network.weighted),
           "features": any(len(network.shapes[layer.name]) == 1 for layer in network.layers)}
    names, most_stages = [], len(cuts(network)) - 1
    for entry in STRATEGIES.values():
        for grid in entry.grids(ranks) if all(has[kind] for kind in entry.needs) else ():
            if entry.pipeline and grid[0] > most_stages:
                continue
            names.append(entry.on(grid))
            if grid and 1 not in grid and entry.outer and len(machine.levels) > 1:
                names.append(f"{entry.on(grid)}/outer")
    return names


def expand(pattern: str, ranks: int) -> list[str]:
    """The strategies that a pattern stands for: ``grid:*`` is every grid of this number of ranks.

    Parameters
    ----------
    pattern : str
        A strategy, or the name of one with ``*`` in place of its grid, or of its second grid, as in
        ``domain:2x4+*``; a placement may follow.

    Raises
    ------
    InputError
        Unknown strategy, or a wildcard on one that takes no grid.
    """
    grids = grid_sizes(ranks, entry_of(pattern).numbers or 1) if "*" in pattern else [()]
    each = [pattern.replace("*", "x".join(map(str, grid))) for grid in grids]
    _, grid = parse(each[0])
    if "+*" in pattern and math.prod(grid) != ranks ** 2:
        return [pattern.replace("+*", "")]  # the first grid is for other ranks: one refusal
    return each


def task(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
         gather: str = "lazy", samples: int | None = None,
         tell: Callable[[str], None] = lambda _: None, **options: Any) -> PlanningTask:
    """A planning problem; `options` are those of `Plan` and of `price`."""
    return PlanningTask(network, spec, ranks, batch, machine, gather, samples, options, tell)


def price_named(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> Candidate:
    """The priced plan of a strategy; `options` are those of `task`.

    Raises
    ------
    InputError
        The strategy cannot be run at this size (`Candidate.refusal`).
    """
    wanted = task(network, spec, ranks, batch, machine, **options)
    search = SEARCHES.get(parse(strategy)[0])
    return accepted([search(wanted) if search else alone(wanted, strategy)])[0]


@searched(Strategy("layerwise", "layer by layer",
                   "a configuration for each layer, found by search (OptCNN)",
                   cuts=("samples", "parts")))
def layerwise_of(t: PlanningTask) -> Candidate:
    return named_or_layerwise(t.network, t.spec, t.ranks, t.batch, t.machine, gather=t.gather,
                              samples=t.samples, tell=t.tell, **t.options)[0]


def accepted(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates that can be run and give every rank samples.

    Raises
    ------
    InputError
        There are none: why the first is refused.
    """
    found = [c for c in candidates if not c.refusal]
    if not found:
        raise InputError(candidates[0].refusal)
    return found


def layerwise(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine,
              **options: Any) -> tuple[Candidate, SearchResult]:
    """The layer-wise plan, and the optimum of the plain sum that it started from."""
    found = plan_layerwise(task(network, spec, ranks, batch, machine, **options))
    return found.candidate, found.result


def named_or_layerwise(network: Network, spec: NetworkSpec, ranks: int, batch: int,
                       machine: Machine, known: list[Candidate] | None = None,
                       **options: Any) -> tuple[Candidate, SearchResult]:
    """The layer-wise plan, or a named strategy of its space that is faster under the timeline.

    The named strategy is then improved by local search as well.

    Parameters
    ----------
    known : list of Candidate, optional
        All named strategies, where the caller has priced them.
    """
    wanted = task(network, spec, ranks, batch, machine, **options)
    chosen, result, search = plan_layerwise(wanted)
    if known is None:
        known = priced(wanted, [name for name in strategies_to_try(network, ranks, machine)
                                if not entry_of(name).apart])
    others = [c for c in known if c.parts <= batch and not entry_of(c.strategy).apart]
    other = best_of(others or [chosen])
    if other.order < chosen.order:
        start = of_plan(wanted, replace(other.plan, strategy="layerwise"))
        chosen = improve(search, start)
    return accepted([chosen])[0], result


def best(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
         layers: bool = True, **options: Any) -> list[Candidate]:
    """Prices every strategy; those that fit in memory come first, each group ordered by time, but
    for much slower ones (`in_order`).

    Pipelines that a lower bound excludes are left out. On a calibrated machine,
    strategies whose computing was measured come before the others. Where the fastest do not fit,
    they are tried with micro-batches and recomputation too.

    Parameters
    ----------
    layers : bool
        Whether the layer-wise plan is included.
    options
        Those of `task`.

    Returns
    -------
    list of Candidate
        The first is the choice. Refused candidates are left out; strategies with layers that cut
        the mini-batch into more parts than it has samples, where others remain.

    Raises
    ------
    InputError
        All are refused.
    """
    wanted = task(network, spec, ranks, batch, machine, **options)
    as_executed = options.get("accounting", "schedule") == "schedule"
    trains = as_executed and options.get("training", True)
    names = strategies_to_try(network, ranks, machine)
    pipelines = [name for name in names if entry_of(name).pipeline]
    found = priced(wanted, [name for name in names if name not in pipelines])
    layered = []
    if layers and ranks > 1 and trains:
        layered.append(layerwise(network, spec, ranks, batch, machine, **options)[0])
    if trains:
        pipelines = _undecided(wanted, pipelines, [*found, *layered])
    found += priced(wanted, pipelines)
    found = [c for c in found if c.parts <= batch] or found
    found = in_order(accepted(found + layered))
    return with_variations(found) if trains else found


def _undecided(wanted: PlanningTask, pipelines: list[str], known: list[Candidate]) -> list[str]:
    """The pipelines that may be faster than all known candidates."""
    usable = [c for c in known if c.parts <= wanted.batch and not c.refusal]
    fastest = best_of(usable) if usable else None
    # an estimate does not decide on what was measured
    if fastest is None or not fastest.fits or fastest.speed[0]:
        return pipelines
    return maybe_faster(wanted, pipelines, fastest.iteration_s)
