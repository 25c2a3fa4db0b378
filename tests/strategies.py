"""Which named strategies a test goes through."""

from __future__ import annotations

from hpcpar.plan.strategies import entry_of, named


def one_pass(ranks: int) -> list[str]:
    """Those in which the whole mini-batch passes once through layers on all ranks."""
    return [s for s in named(ranks) if not entry_of(s).apart]


def whole_sums(ranks: int) -> list[str]:
    """Those of them that cut no sum over input channels."""
    return [s for s in one_pass(ranks) if s != "channel"]
