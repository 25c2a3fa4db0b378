"""Gholami et al., SPAA 2018: the grid and the parallelism per layer with the least time by Eq 9.

For a given grid Pr x Pc, Eq 9 is a sum over layers, so each layer takes the cheaper of model and
domain parallelism. The search tries all grids.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.papers.gholami import HockneyLink, eq9_shares
from hpcpar.plan.strategy import grid_sizes


@dataclass(frozen=True)
class GridChoice:
    """A grid Pr x Pc with its model-parallel (L_M) and domain-parallel (L_D) layers.

    Attributes
    ----------
    seconds : float
        Communication time per iteration by Eq 9.
    """

    pr: int
    pc: int
    model: tuple[str, ...]
    domain: tuple[str, ...]
    seconds: float


def choose(network: Network, ranks: int, batch: int, link: HockneyLink,
           pr: int | None = None) -> GridChoice:
    """The choice with the least communication time by Eq 9, optionally with a given Pr."""
    choices = []
    for rows, columns in grid_sizes(ranks):
        if columns > batch or (pr is not None and rows != pr):
            continue
        shares = eq9_shares(network, rows, columns, batch, link)
        domain = tuple(name for name, (model_s, domain_s) in shares.items() if domain_s is not None
                       and domain_s < model_s)
        model = tuple(name for name in shares if name not in domain)
        seconds = sum(min(m, m if d is None else d) for m, d in shares.values())
        choices.append(GridChoice(rows, columns, model, domain, seconds))
    return min(choices, key=lambda choice: choice.seconds)
