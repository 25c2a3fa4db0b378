"""The named strategies that tests iterate over."""

from __future__ import annotations

from hpcpar.plan.strategies import entry_of
from hpcpar.plan.strategy import STRATEGIES


def named(ranks: int) -> list[str]:
    """Every strategy that `auto` tries on this number of ranks, without duplicates."""
    return [entry.on(grid) for entry in STRATEGIES.values() for grid in entry.grids(ranks)]


def one_pass(ranks: int) -> list[str]:
    """Strategies in which the whole mini-batch passes once through all layers, on all ranks."""
    return [s for s in named(ranks) if not entry_of(s).apart]


def whole_sums(ranks: int) -> list[str]:
    """Strategies of `one_pass` that do not split sums over input channels."""
    return [s for s in one_pass(ranks) if s != "channel"]
