"""The best of the named strategies: price every one, keep what fits in memory, take the fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan
from hpcpar.plan.stages import cuts
from hpcpar.plan.strategies import STRATEGIES, grid_sizes, named, parse
from hpcpar.search.candidates import APART, Candidate, Task, alone, of_plan, priced
from hpcpar.search.layerwise import HIDDEN, Found, Search
from hpcpar.search.local_search import polished


def candidates(network: Network, ranks: int, machine: Machine) -> list[str]:
    """Strategies worth pricing for this network and machine.

    Without image layers, those that cut images are the same as others. Where the machine has
    several levels, mixed groups are tried in both placements; the ranks of a pipeline's stage all
    do the same.
    """
    images = any(len(network.shapes[layer.name]) > 1 for layer in network.weighted)
    stages = len(cuts(network)) - 1
    out = []
    for strategy in named(ranks):
        name, grid = parse(strategy)
        if not images and name in ("spatial", "domain", "ds", "owt", "grid-fc"):
            continue
        if name == "pipeline" and grid is not None and grid[0] > stages:
            continue
        out.append(strategy)
        if grid is not None and 1 not in grid and name != "pipeline" and len(machine.levels) > 1:
            out.append(f"{strategy}/outer")
    return out


def expand(pattern: str, ranks: int) -> list[str]:
    """Strategies that a pattern names: ``grid:*`` stands for every grid of this number of ranks.

    Parameters
    ----------
    pattern : str
        A strategy, or the name of one that takes a grid followed by ``:*``; a placement may follow.

    Raises
    ------
    InputError
        Unknown strategy, or a wildcard on one that takes no grid.
    """
    if pattern == "layerwise":
        return [pattern]
    whole, slash, placement = pattern.partition("/")
    name, _, rest = whole.partition(":")
    if rest != "*":
        parse(pattern)
        return [pattern]
    if name in STRATEGIES and STRATEGIES[name][1] == "no":
        raise InputError(f"strategy '{pattern}': '{name}' takes no grid; write just '{name}'")
    if name not in STRATEGIES:
        parse(name)
    grids = grid_sizes(ranks)
    # their first number is the sample groups: keep the order by growing model or domain parts
    if name in ("df", "ds"):
        grids = [(b, a) for a, b in grids]
    return [f"{name}:{a}x{b}{slash}{placement}" for a, b in grids]


def task(
    network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *, gather: str = "late", samples: int | None = None,
    **options: Any,
) -> Task:
    """What is planned; `options` are those of `Plan` and of `price`."""
    return Task(network, spec, ranks, batch, machine, gather, samples, options)


def price_named(
    network: Network, spec: NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine, **options: Any
) -> Candidate:
    """The plan of a named strategy, or of ``layerwise``, with its price; `options` are those of
    `task`.
    """
    if strategy == "layerwise":
        return named_or_layerwise(network, spec, ranks, batch, machine, **options)[0]
    return alone(task(network, spec, ranks, batch, machine, **options), strategy)


def layerwise(
    network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, **options: Any
) -> tuple[Candidate, Found]:
    """The layer-wise plan, and what the search for the plain sum found."""
    chosen, found, _ = _layerwise(task(network, spec, ranks, batch, machine, **options))
    return chosen, found


def _layerwise(wanted: Task) -> tuple[Candidate, Found, Search]:
    options = wanted.options
    if options.get("accounting", "schedule") != "schedule" or not options.get("training", True):
        raise InputError("strategy 'layerwise' searches for training as it is executed; leave out --accounting paper, --forward-only, or "
                         "name a strategy")
    search = Search(
        wanted.network, wanted.spec, wanted.ranks, wanted.batch, wanted.machine, contention=options.get("contention"),
        gamma=options.get("gamma", 1.0), **wanted.plan_options,
    )
    found = search.best()
    return _in_time(wanted, search, found), found, search


def _in_time(wanted: Task, search: Search, found: Found) -> Candidate:
    """The fastest plan that is found, hidden communication included.

    The papers' objective is the plain sum. Where the plan overlaps, optima with parts of the
    gradients' sums hidden are laid out in time, and the fastest that fits is taken and polished: of
    none, half and all, then of the eighths around the best.
    """
    if search.plan.overlap == "none":
        return of_plan(wanted, found.plan)
    priced_plans: dict[Any, Candidate] = {}

    def try_hiding(eighths: int) -> Candidate:
        plan = search.best(hidden=HIDDEN[eighths]).plan if eighths else found.plan
        key = tuple(c.key for c in plan.configs.values())
        if key not in priced_plans:
            priced_plans[key] = of_plan(wanted, plan)
        return priced_plans[key]

    tried = {i: try_hiding(i) for i in (0, 4, 8)}
    for step in (2, 1):
        best = min(tried, key=lambda i: tried[i].order)
        # what is best with two parts hidden is so with all in between
        tried |= {i: try_hiding(i) for i, end in ((best - step, best - 2 * step), (best + step, best + 2 * step))
                  if end in tried and tried[end] is not tried[best]}
    return polished(search, min(tried.values(), key=lambda c: c.order))


#: Doublings of the ranks that are tried where nothing fits.
DOUBLINGS = 4


def least_memory(
    network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, **options: Any
) -> tuple[int, int | None]:
    """The least memory of any layer-wise plan (bytes of a rank), and the number of ranks, doubled
    until it fits, that would do.

    None where even 16 times the ranks are too few.
    """
    wanted = task(network, spec, ranks, batch, machine, **options).plan_options
    least = _least(Search(network, spec, ranks, batch, machine, **wanted))
    for doubling in range(1, DOUBLINGS + 1):
        more = ranks << doubling
        if _least(Search(network, spec, more, batch, machine,
                         **wanted)) <= machine.device.memory_bytes:
            return least, more
    return least, None


def _least(search: Search) -> int:
    return search.held_bytes(search.smallest().plan)


def named_or_layerwise(
    network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, known: list[Candidate] | None = None, **options: Any
) -> tuple[Candidate, Found]:
    """The layer-wise plan, or that of a named strategy of its space where the timeline says that it
    is faster.

    Parameters
    ----------
    known : list of Candidate, optional
        All named strategies, where they were priced already.
    """
    wanted = task(network, spec, ranks, batch, machine, **options)
    chosen, found, search = _layerwise(wanted)
    if known is None:
        known = priced(wanted,
                       [s for s in candidates(network, ranks, machine) if parse(s)[0] not in APART])
    others = [c for c in known if c.parts <= batch and parse(c.strategy)[0] not in APART]
    other = min(others, key=lambda c: c.order, default=chosen)
    if other.order < chosen.order:
        chosen = polished(search, of_plan(wanted, replace(other.plan, strategy="layerwise")))
    return chosen, found


def best(
    network: Network, spec: NetworkSpec, ranks: int, batch: int, machine: Machine, *, accept: Callable[[Plan], bool] | None = None,
    layers: bool = True, **options: Any,
) -> list[Candidate]:
    """Every strategy, priced and in order: those that fit in memory before those that do not, each
    by time.

    On a calibrated machine, those that were measured come before those that were not.

    Parameters
    ----------
    accept : callable, optional
        Which plans count (for example, those that can be run); where none does, all count.
    layers : bool
        Also the layer-wise search's plan.
    options
        Those of `task`.

    Returns
    -------
    list of Candidate
        The first is the choice. Strategies that cut the mini-batch into more parts than it has
        samples are left out where another remains.
    """
    wanted = task(network, spec, ranks, batch, machine, **options)
    found = priced(wanted, candidates(network, ranks, machine))
    found = [c for c in found if c.parts <= batch] or found
    if accept is not None:
        found = [c for c in found if accept(c.plan)] or found
    if layers and ranks > 1 and options.get("accounting", "schedule") == "schedule" and options.get("training", True):
        found.append(layerwise(network, spec, ranks, batch, machine, **options)[0])
    return sorted(found, key=lambda c: c.order)
