"""Decides among the named strategies and the layer-wise plan."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcpar.cost.anchors import in_case
from hpcpar.cost.compute.priced_formats import require_priced
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import entry_of, parse, require_grids
from hpcpar.plan.strategy import STRATEGIES, Grid, Strategy, grid_sizes
from hpcpar.search import first_layers, integrated  # noqa: F401 - register strategies
from hpcpar.search.candidates import Candidate, best_of, in_order, of_plan, price_strategy, priced
from hpcpar.search.choice import choice_first
from hpcpar.search.fit import with_variations
from hpcpar.search.layerwise import plan_layerwise
from hpcpar.search.local_search import improve
from hpcpar.search.pipelines import maybe_faster
from hpcpar.search.searches import SEARCHES, searched
from hpcpar.search.table_search import SearchResult
from hpcpar.search.task import PlanningTask

#: A grid with one number open, as in ``*x4``.
_ONE_NUMBER = re.compile(r"\d+x\*|\*x\d+")


def strategies_to_try(network: Network, ranks: int, machine: Machine) -> list[str]:
    """Named strategies worth pricing for this network and machine.

    On a machine with several levels, mixed groups come in both placements.
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


def expand(pattern: str, ranks: int, build: Callable[[], Network] | None = None) -> list[str]:
    """The strategies that match a pattern: ``grid:*`` matches all grids of `ranks` ranks.

    ``*`` may also replace a second grid, as in ``domain:2x4+*``, the number of first layers, as in
    ``ds:2x4+*`` (`build` makes the network), or the number of a grid that follows from `ranks`, as
    in ``df:*x4``; a placement may follow.

    Raises
    ------
    InputError
        The strategy is unknown, or has a wildcard but does not take a grid.
    """
    grid_part, counts, placement = pattern.partition("+*")
    if counts and build is not None and entry_of(pattern).counts_layers:
        fitting = [name for name in expand(grid_part, ranks) if math.prod(parse(name)[1]) == ranks]
        last = max(1, len(first_layers.convolutions(build())))  # without one: refused
        return [f"{name}+{count}{placement}" for name in fitting
                for count in range(1, last + 1)] or [grid_part + placement]
    if known := _ONE_NUMBER.search(pattern):
        number = ranks // math.prod(int(n) for n in re.findall(r"\d+", known.group()))
        return [pattern.replace("*", str(max(1, number)))]  # refused if the ranks do not divide
    grids = grid_sizes(ranks, entry_of(pattern).numbers or 1) if "*" in pattern else [()]
    names = [pattern.replace("*", "x".join(map(str, grid))) for grid in grids]
    _, grid = parse(names[0])
    if "+*" in pattern and math.prod(grid) != ranks ** 2:
        return [pattern.replace("+*", "")]  # the first grid does not fit the ranks: refused once
    return names


def task(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
         gather: str = "lazy", samples: int | None = None,
         tell: Callable[[str], None] = lambda _: None, **options: Any) -> PlanningTask:
    """A planning problem, with options of `Plan` and of `price`."""
    precision = options.get("precision", Plan.precision)
    require_priced(machine, precision, options.get("synchronization", Plan.synchronization))
    if machine.anchored is not None:
        machine = in_case(machine, ranks, batch, precision)
    return PlanningTask(network, spec, ranks, batch, machine, gather, samples, options, tell)


def price_named(network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int,
                machine: Machine, **options: Any) -> Candidate:
    """The priced plan of a strategy, with the options of `task`.

    Raises
    ------
    InputError
        The strategy cannot run at this size (`Candidate.refusal`).
    """
    problem = task(network, spec, ranks, batch, machine, **options)
    name, grid = parse(strategy)
    search = SEARCHES.get(name)
    if search is None:
        return accepted([price_strategy(problem, strategy)])[0]
    require_grids(strategy, ranks)
    if "/" in strategy:
        raise InputError(f"strategy '{strategy}': '{name}' takes no placement; write "
                         f"'{strategy.partition('/')[0]}'")
    return accepted([search(problem, grid)])[0]


@searched(Strategy("layerwise", "layer by layer",
                   "a configuration for each layer, found by search (OptCNN)",
                   cuts=("samples", "parts")))
def layerwise_of(t: PlanningTask, grid: Grid) -> Candidate:
    return named_or_layerwise(t.network, t.spec, t.ranks, t.batch, t.machine, gather=t.gather,
                              samples=t.samples, tell=t.tell, **t.options)[0]


def accepted(candidates: list[Candidate]) -> list[Candidate]:
    """The candidates that can run and give every rank samples.

    Raises
    ------
    InputError
        No candidate can; the message is the refusal of the first.
    """
    runnable = [c for c in candidates if not c.refusal]
    if not runnable:
        raise InputError(candidates[0].refusal)
    return runnable


def named_or_layerwise(network: Network, spec: NetworkSpec, ranks: int, batch: int,
                       machine: Machine, known: list[Candidate] | None = None,
                       **options: Any) -> tuple[Candidate, SearchResult]:
    """The layer-wise plan, or a named strategy of its space that is faster under the timeline.

    Local search improves the named strategy as well.

    Parameters
    ----------
    known : list of Candidate, optional
        All named strategies, if the caller has priced them.
    """
    problem = task(network, spec, ranks, batch, machine, **options)
    chosen, result, search = plan_layerwise(problem)
    if known is None:
        known = priced(problem, [name for name in strategies_to_try(network, ranks, machine)
                                 if not entry_of(name).apart])
    named = [c for c in known if c.parts <= batch and not (entry_of(c.strategy).apart or c.refusal)]
    best_named = best_of(named or [chosen])
    if best_named.order < chosen.order:
        start = of_plan(problem, replace(best_named.plan, strategy="layerwise"))
        chosen = improve(search, start)
    return accepted([chosen])[0], result


def best(network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *,
         layers: bool = True, **options: Any) -> list[Candidate]:
    """Price all strategies, and sort them with `in_order`; `choice_first` has the first place.

    A lower bound excludes some pipelines. On a calibrated machine, strategies with measured compute
    times come first. If the fastest strategies do not fit, variations with micro-batches and
    recomputation join them.

    Parameters
    ----------
    layers : bool
        Include the layer-wise plan.
    options
        The options of `task`.

    Returns
    -------
    list of Candidate
        The choice comes first. The list omits candidates that cannot run, and strategies that cut
        the mini-batch into more parts than samples, unless all do.

    Raises
    ------
    InputError
        No candidate can run.
    """
    problem = task(network, spec, ranks, batch, machine, **options)
    searches = options.get("accounting", "schedule") == "schedule"
    names = strategies_to_try(network, ranks, machine)
    pipelines = [name for name in names if entry_of(name).pipeline]
    named = priced(problem, [name for name in names if name not in pipelines])
    layered = []
    if layers and ranks > 1 and searches:
        layered.append(plan_layerwise(problem).candidate)
    if searches:
        pipelines = _undecided(problem, pipelines, [*named, *layered])
    named += priced(problem, pipelines)
    named = [c for c in named if c.parts <= batch] or named
    candidates = in_order(accepted(named + layered))
    return choice_first(with_variations(candidates)) if searches else candidates


def _undecided(problem: PlanningTask, pipelines: list[str], known: list[Candidate]) -> list[str]:
    """The pipelines that may be faster than all known candidates."""
    usable = [c for c in known if c.parts <= problem.batch and not c.refusal]
    fastest = best_of(usable) if usable else None
    # an estimated time does not exclude pipelines with measured times
    if fastest is None or not fastest.fits or fastest.speed[0]:
        return pipelines
    return maybe_faster(problem, pipelines, fastest.iteration_s)
