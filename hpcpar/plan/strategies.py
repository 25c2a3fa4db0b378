"""Strategies by name, ``name:AxB/placement``, and their configurations.

The suffix ``/outer`` places model groups across nodes and sample groups inside (``df:4x2/outer``);
``/inner``, the default, does the reverse. Numbers of ranks and parts may be arrays, with one entry
per plan of a family.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcpar.errors import InputError, unknown
from hpcpar.network.graph import Network
from hpcpar.options import other_names
from hpcpar.plan import builtin_strategies  # noqa: F401 - registers the built-in strategies
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.strategy import (
    STRATEGIES,
    Configs,
    Grid,
    Strategy,
    StrategyOptions,
    StrategyRequest,
    grid_sizes,
)

#: When to gather a channel-split activation. ``lazy``: just before a layer needs it whole, when
#: pooling may have shrunk it; the backward pass is a reduce-scatter. ``eager``: right after the
#: layer that computes it (as Eq 3, 8 and 9 count).
GATHERS = ("lazy", "eager")


def placement_of(strategy: str) -> tuple[str, str]:
    """Splits ``strategy/placement``; the default placement is ``inner``."""
    name, _, placement = strategy.partition("/")
    if placement and placement not in PLACEMENTS:
        raise unknown("placement", placement, PLACEMENTS)
    return name, placement or "inner"


def entry_of(strategy: str) -> Strategy:
    """The entry of a strategy, named with or without its numbers."""
    name = strategy.partition("/")[0].partition(":")[0]
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES, other_names.STRATEGIES)
    return STRATEGIES[name]


def parse(strategy: str) -> tuple[str, Grid]:
    """Splits ``name`` or ``name:AxB``, with or without a placement, and checks it.

    Raises
    ------
    InputError
        The name is unknown, or the grid or placement is missing, malformed or superfluous.
    """
    entry = entry_of(strategy)
    return entry.name, entry.grid_in(placement_of(strategy)[0])


def fill(network: Network, name: str, ranks: int, grid: tuple[int, ...] = (),
         gather: str = "lazy", placement: str = "inner") -> Configs:
    """The configuration of every layer under the strategy with this name and grid."""
    if gather not in GATHERS:
        raise unknown("gather", gather, GATHERS)
    return entry_of(name).fill(
        StrategyRequest(network, ranks, grid or (ranks, 1), gather, placement))


def require_grids(strategy: str, ranks: int) -> None:
    """Refuses a strategy with a grid whose product is not `ranks`."""
    entry, (_, grid) = entry_of(strategy), parse(strategy)
    for at in range(0, len(grid), entry.numbers or 1):
        sizes = grid[at:at + entry.numbers]
        product = math.prod(sizes)
        if product != ranks and len(sizes) == entry.numbers:
            fits = ", ".join(map(entry.on, grid_sizes(ranks, entry.numbers)))
            raise InputError(f"strategy '{strategy}' is for {product} ranks, not {ranks}; use one "
                             f"of {fits}")


def configurations(network: Network, strategy: str, ranks: int, gather: str = "lazy") -> Configs:
    """The configuration of every layer under a named strategy.

    Raises
    ------
    InputError
        The strategy is unknown, the product of the grid is not `ranks`, or layers run on a part of
        the ranks although the entry is not ``staged``.
    """
    name, grid = parse(strategy)
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give a whole number of at least 1")
    entry = STRATEGIES[name]
    require_grids(strategy, ranks)
    configs = fill(network, name, ranks, grid, gather, placement_of(strategy)[1])
    for layer, config in configs.items():
        if config.ranks != ranks and not entry.apart:
            raise InputError(f"strategy '{strategy}' puts layer '{layer}' on {config.ranks} of "
                             f"{ranks} ranks; register the strategy with staged=True")
    return configs


def together(plans: Sequence[Configs]) -> Configs:
    """Joins the configurations of several plans into a family.

    Layers with equal configurations in every plan share one object in the family.
    """
    families: dict[tuple[object, ...], Config] = {}
    joined: Configs = {}
    for name in plans[0]:
        configs = [plan[name] for plan in plans]
        key = tuple(config.key for config in configs)
        if key not in families:
            families[key] = Config.family(configs)
        joined[name] = families[key]
    return joined


def plan_options(strategy: str, ranks: int, batch: int) -> StrategyOptions:
    """Options of `Plan` that a strategy fixes, such as a pipeline's micro-batches."""
    name, grid = parse(strategy)
    fixes = STRATEGIES[name].fixes
    return {} if fixes is None else fixes(ranks, batch, grid)
