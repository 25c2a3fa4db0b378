"""Named strategies: the registry, the parser of ``name:AxB/placement``, and what each one fills in.

==================  ==============================================================================
``data``            every layer by samples (Eq 4)
``filter``          every layer by output channels (Eq 3; ParaDL's filter)
``channel``         every layer by input channels, partial sums added (ParaDL's channel)
``spatial``         images by rows (and columns), then features by samples (Eq 7, ParaDL)
``pipeline``        stages of layers and micro-batches (GPipe), one rank a stage;
                    ``pipeline:SxN``: N ranks a stage
``grid:PRxPC``      every layer by PR channel parts times PC sample parts: 1.5D products (Eq 8)
``grid-fc:PRxPC``   convolutions by samples over all ranks, fully connected layers on the grid
                    (integrated, Fig 7)
``domain:PRxPC``    convolutions by PR image parts, fully connected layers by PR channel parts, both
                    times PC sample parts (Eq 9); ``domain:PRxPC+PRxPC``: the second grid is that of
                    the fully connected layers (integrated, Fig 10)
``df:P1xP2``        P1 groups of samples, each of P2 channel parts (ParaDL's data + filter)
``ds:P1xP2``        P1 groups of samples, each of P2 image parts (ParaDL's data + spatial)
``owt``             convolutions by samples, fully connected layers by channels (one weird trick,
                    scheme a)
``owt-b, owt-c``    the same with several passes of the fully connected layers, each over the
                    samples of one rank (b) or over some samples of every rank (c)
==================  ==============================================================================

The suffix ``/outer`` places model groups across nodes and sample groups inside (``df:4x2/outer``);
``/inner``, the default, does the reverse. Numbers of ranks and parts may be arrays, with one entry
per case of a family of plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypedDict

from hpcpar.errors import InputError, unknown
from hpcpar.network.graph import Network
from hpcpar.plan import strategies_1d, strategies_15d
from hpcpar.plan.config import PLACEMENTS, Config
from hpcpar.plan.strategy_request import Configs, StrategyRequest

#: When a channel-split activation is gathered. ``lazy``: just before a layer needs it whole; it is
#: smaller behind a pooling layer, and the backward pass is a reduce-scatter. ``eager``: right after
#: the layer that computes it (the accounting of Eq 3, 8 and 9).
GATHERS = ("lazy", "eager")
#: Earlier names of `GATHERS`, still accepted.
GATHER_SYNONYMS = {"late": "lazy", "layer": "eager"}

#: One weird trick makes one pass per rank: on more ranks than this the passes are too short to be
#: worth trying.
MOST_FC_PASSES = 16

class StrategyOptions(TypedDict, total=False):
    """Options of `Plan` that a strategy may fix."""

    microbatches: int
    fc_passes: int
    switch: str


_Fill = Callable[[StrategyRequest], Configs]
#: name -> (the function that fills in configurations, whether it takes a grid: no, yes or may)
STRATEGIES: dict[str, tuple[_Fill, str]] = {
    "data": (strategies_1d.data, "no"),
    "filter": (strategies_15d.filters, "no"),
    "channel": (strategies_1d.channel, "no"),
    "spatial": (strategies_1d.spatial, "no"),
    "pipeline": (strategies_1d.pipeline, "may"),
    "grid": (strategies_15d.grid, "yes"),
    "grid-fc": (strategies_15d.grid_fc, "yes"),
    "domain": (strategies_15d.domain, "yes"),
    "df": (strategies_15d.data_filter, "yes"),
    "ds": (strategies_1d.data_spatial, "yes"),
    "owt": (strategies_15d.one_weird_trick, "no"),
    "owt-b": (strategies_15d.one_weird_trick, "no"),
    "owt-c": (strategies_15d.one_weird_trick, "no"),
}


def grid_sizes(ranks: int) -> list[tuple[int, int]]:
    """All (Pr, Pc) with Pr * Pc = ranks, by growing Pr."""
    return [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]


def gather_named(name: str) -> str:
    """The entry of `GATHERS` with this name or earlier name.

    Raises
    ------
    InputError
        Unknown name.
    """
    gather = GATHER_SYNONYMS.get(name, name)
    if gather not in GATHERS:
        raise unknown("gather", name, GATHERS)
    return gather


def placement_of(strategy: str) -> tuple[str, str]:
    """Splits ``strategy/placement``; the default placement is ``inner``."""
    name, _, placement = strategy.partition("/")
    if placement and placement not in PLACEMENTS:
        raise unknown("placement", placement, PLACEMENTS)
    return name, placement or "inner"


def parse(strategy: str) -> tuple[str, tuple[int, ...] | None]:
    """Splits ``name`` or ``name:AxB``, with or without a placement, and checks it.

    The numbers are two, or four where fully connected layers have a grid of their own.

    Raises
    ------
    InputError
        Unknown name (with the nearest), or a missing, malformed or superfluous grid or placement.
    """
    strategy, _ = placement_of(strategy)
    name, _, rest = strategy.partition(":")
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    takes_grid = STRATEGIES[name][1]
    if takes_grid == "no" and rest:
        raise InputError(f"strategy '{name}' takes no grid; write just '{name}'")
    if takes_grid == "no" or (takes_grid == "may" and not rest):
        return name, None
    pair = r"([1-9]\d*)x([1-9]\d*)"
    match = re.fullmatch(rf"{pair}(?:\+{pair})?" if name == "domain" else pair, rest)
    if match is None:
        another = ", or two, as in 'domain:2x4+8x1'" if name == "domain" else ""
        raise InputError(f"strategy '{strategy}': '{name}' needs a grid of two whole numbers, "
                         f"as in '{name}:2x4'{another}")
    return name, tuple(int(number) for number in match.groups() if number)


def fill(network: Network, name: str, ranks: int, grid: tuple[int, ...] | None = None,
         gather: str = "lazy", placement: str = "inner") -> Configs:
    """The configuration of every layer under a strategy of this name."""
    function = STRATEGIES[name][0]
    return function(StrategyRequest(network, ranks, (ranks, 1) if grid is None else grid,
                                    gather_named(gather), placement))


def configurations(network: Network, strategy: str, ranks: int, gather: str = "lazy") -> Configs:
    """The configuration of every layer under a named strategy.

    Raises
    ------
    InputError
        Unknown strategy, or a grid whose product is not `ranks`.
    """
    name, grid = parse(strategy)
    if ranks < 1:
        raise InputError(f"{ranks} ranks: give a whole number of at least 1")
    for a, b in zip(grid[::2], grid[1::2], strict=True) if grid else ():
        if a * b != ranks:
            fits = ", ".join(f"{name}:{a}x{b}" for a, b in grid_sizes(ranks))
            raise InputError(f"strategy '{strategy}' is for {a * b} ranks, not {ranks}; use one of "
                             f"{fits}")
    return fill(network, name, ranks, grid, gather, placement_of(strategy)[1])


def together(plans: Sequence[Configs]) -> Configs:
    """Joins the configurations of several plans into a family.

    Layers that share one configuration in every plan share one object in the family.
    """
    families: dict[tuple[object, ...], Config] = {}
    joined: Configs = {}
    for name in plans[0]:
        each = [configs[name] for configs in plans]
        key = tuple(config.key for config in each)
        if key not in families:
            families[key] = Config.family(each)
        joined[name] = families[key]
    return joined


def plan_options(strategy: str, ranks: int, batch: int) -> StrategyOptions:
    """Options of `Plan` that a strategy fixes: micro-batches of a pipeline, fc passes of OWT."""
    name, grid = parse(strategy)
    if name == "pipeline":
        stages, stage_ranks = (ranks, 1) if grid is None else grid
        # GPipe: with four micro-batches a stage and more the bubble is small
        most = min(4 * stages, batch // stage_ranks)
        return {"microbatches": max(1, most) if stages > 1 else 1}
    if name in ("owt-b", "owt-c") and ranks > 1:
        return {"fc_passes": ranks, "switch": "one" if name == "owt-b" else "each"}
    return {}


def named(ranks: int) -> list[str]:
    """Every named strategy on this number of ranks; no configuration occurs under two names."""
    if ranks == 1:
        return ["data"]
    grids = [(a, b) for a, b in grid_sizes(ranks) if a > 1]
    mixed = [(a, b) for a, b in grids if b > 1]
    names = ["data", "filter", "spatial", "owt"]
    names += [f"grid:{a}x{b}" for a, b in mixed]
    names += [f"grid-fc:{a}x{b}" for a, b in mixed]
    names += [f"domain:{a}x{b}" for a, b in grids]
    names += [f"ds:{b}x{a}" for a, b in mixed]
    names.append("channel")
    if ranks <= MOST_FC_PASSES:
        names += ["owt-b", "owt-c"]
    return names + [f"pipeline:{a}x{b}" for a, b in grids]
