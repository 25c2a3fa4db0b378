"""Which named strategies a test goes through."""

from __future__ import annotations

from hpcpar.plan.strategies import entry_of
from hpcpar.plan.strategy import STRATEGIES


def named(ranks: int) -> list[str]:
    """Every strategy that `auto` tries on this number of ranks; no configuration occurs twice."""
    return [entry.on(grid) for entry in STRATEGIES.values() for grid in entry.grids(ranks)]


def one_pass(ranks: int) -> list[str]:
    """Those in which the whole mini-batch passes once through layers on all ranks."""
    return [s for s in named(ranks) if not entry_of(s).apart]


def whole_sums(ranks: int) -> list[str]:
    """One-pass strategies that cut no sum over input channels."""
    return [s for s in one_pass(ranks) if s != "channel"]
