"""Automatic choice: prices every named strategy and the layer-wise plan, the best first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import STRATEGIES, grid_sizes, named, parse
from hpcpar.search.candidates import (
    APART,
    Candidate,
    PlanningTask,
    alone,
    best_of,
    in_order,
    of_plan,
    priced,
)
from hpcpar.search.fit import with_variations
from hpcpar.search.integrated import plan_integrated
from hpcpar.search.layerwise import plan_layerwise
from hpcpar.search.local_search import improve
from hpcpar.search.pipelines import maybe_faster
from hpcpar.search.table_search import SearchResult

#: Strategies whose configurations depend on machine and batch.
SEARCHED = ("layerwise", "integrated")


def strategies_to_try(network: Network, ranks: int, machine: Machine) -> list[str]:
    """Named strategies worth pricing for this network and machine.

    Strategies that cut images are left out where the network has no image layers, and those that
    change the cut for features where it has none. Mixed groups are
    tried in both placements where the machine has several levels. The ranks of a pipeline's stage
    all do the same, so pipelines have one placement.
    """
    images = any(len(network.shapes[layer.name]) > 1 for layer in network.weighted)
    features = any(len(network.shapes[layer.name]) == 1 for layer in network.layers)
    most_stages = len(cuts(network)) - 1
    names = []
    for strategy in named(ranks):
        name, grid = parse(strategy)
        if not images and name in ("spatial", "domain", "ds", "owt", "grid-fc"):
            continue
        if not features and name in ("domain", "owt", "owt-b", "owt-c", "grid-fc"):
            continue
        if name == "pipeline" and grid is not None and grid[0] > most_stages:
            continue
        names.append(strategy)
        if grid is not None and 1 not in grid and name != "pipeline" and len(machine.levels) > 1:
            names.append(f"{strategy}/outer")
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
    if pattern in SEARCHED:
        return [pattern]
    strategy, slash, placement = pattern.partition("/")
    name, _, rest = strategy.partition(":")
    if rest.endswith("+*"):
        first = pattern.replace("+*", "")
        fits = math.prod(parse(first)[1] or ()) == ranks
        # where the first grid is for other ranks, one refusal is enough
        return [pattern.replace("*", f"{a}x{b}") for a, b in grid_sizes(ranks)] if fits else [first]
    if rest != "*":
        parse(pattern)
        return [pattern]
    if name in STRATEGIES and STRATEGIES[name][1] == "no":
        raise InputError(f"strategy '{pattern}': '{name}' takes no grid; write just '{name}'")
    if name not in STRATEGIES:
        parse(name)
    grids = grid_sizes(ranks)
    if name in ("df", "ds"):  # their sample groups come first: order by the other number
        grids = [(b, a) for a, b in grids]
    return [f"{name}:{a}x{b}{slash}{placement}" for a, b in grids]


def task(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
         gather: str = "lazy", samples: int | None = None,
         tell: Callable[[str], None] = lambda _: None, **options: Any) -> PlanningTask:
    """A planning problem; `options` are those of `Plan` and of `price`."""
    return PlanningTask(network, spec, ranks, batch, machine, gather, samples, options, tell)


def price_named(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> Candidate:
    """The priced plan of a named strategy or of one of `SEARCHED`; `options` are those of `task`.

    Raises
    ------
    InputError
        The strategy cannot be run at this size (`Candidate.refusal`).
    """
    if strategy == "layerwise":
        return named_or_layerwise(network, spec, ranks, batch, machine, **options)[0]
    plan_alone = plan_integrated if strategy == "integrated" else partial(alone, strategy=strategy)
    return accepted([plan_alone(task(network, spec, ranks, batch, machine, **options))])[0]


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
                                if parse(name)[0] not in APART])
    others = [c for c in known if c.parts <= batch and parse(c.strategy)[0] not in APART]
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
    pipelines = [name for name in names if parse(name)[0] == "pipeline"]
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
