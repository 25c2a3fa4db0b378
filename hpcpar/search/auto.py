"""The best of the named strategies: price every one, keep what fits in memory, take the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcpar.cost.price import Prediction, price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan
from hpcpar.plan.strategies import STRATEGIES, grid_sizes, named, parse


@dataclass(frozen=True)
class Candidate:
    """A plan and its price."""

    plan: Plan
    prediction: Prediction


def candidates(network: Network, ranks: int) -> list[str]:
    """Named strategies worth pricing for this network: without image layers, those that cut images are the same as others."""
    images = any(len(shape) == 3 for name, shape in network.shapes.items() if network.by_name[name].has_weights)
    return [s for s in named(ranks) if images or s.partition(":")[0] not in ("spatial", "domain", "ds", "owt", "grid-fc")]


def expand(pattern: str, ranks: int) -> list[str]:
    """Strategies that a pattern names: ``grid:*`` stands for every grid of this number of ranks.

    Parameters
    ----------
    pattern : str
        A strategy, or the name of one that takes a grid followed by ``:*``.

    Raises
    ------
    InputError
        Unknown strategy, or a wildcard on one that takes no grid.
    """
    name, _, rest = pattern.partition(":")
    if rest != "*":
        parse(pattern)
        return [pattern]
    if name in STRATEGIES and not STRATEGIES[name][1]:
        raise InputError(f"strategy '{pattern}': '{name}' takes no grid; write just '{name}'")
    if name not in STRATEGIES:
        parse(name)
    grids = grid_sizes(ranks)
    if name in ("df", "ds"):  # their first number is the sample groups: keep the order by growing model or domain parts
        grids = [(b, a) for a, b in grids]
    return [f"{name}:{a}x{b}" for a, b in grids]


def sample_parts(plan: Plan) -> int:
    """Parts that the mini-batch is cut into, at most over layers: beyond the batch, ranks have nothing to do."""
    return max(config.n for config in plan.configs.values())


def price_named(
    network: Network,
    spec: NetworkSpec,
    strategy: str,
    ranks: int,
    batch: int,
    machine: Machine,
    *,
    gather: str = "late",
    samples: int | None = None,
    accounting: str = "schedule",
    **options: Any,
) -> Candidate:
    """The plan of a named strategy with its price; `options` are the plan's (overlap, collectives, dtype)."""
    plan = make_plan(spec, strategy, ranks, batch, gather=gather, machine=files.to_dict(machine), **options)
    return Candidate(plan, price(network, plan, machine, samples=samples, accounting=accounting))


def best(
    network: Network,
    spec: NetworkSpec,
    ranks: int,
    batch: int,
    machine: Machine,
    **options: Any,
) -> list[Candidate]:
    """Every named strategy, priced and in order: those that fit in memory before those that do not, each by time.

    Parameters
    ----------
    options
        Those of `price_named`.

    Returns
    -------
    list of Candidate
        The first is the choice. Strategies that cut the mini-batch into more parts than it has samples are left out
        where another remains.
    """
    priced = [price_named(network, spec, s, ranks, batch, machine, **options) for s in candidates(network, ranks)]
    whole = [c for c in priced if sample_parts(c.plan) <= batch] or priced
    return sorted(whole, key=lambda c: (not c.prediction.fits, c.prediction.iteration_s))
