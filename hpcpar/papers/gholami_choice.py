"""Gholami's choice: the grid Pr x Pc, and for every layer model or domain parallelism, that cost
least under Eq 9.

Given the grid, Eq 9 is a sum over layers, so each layer takes the cheaper of its two shares, and
the best grid is found by trying all.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.papers.gholami import Link, eq9_shares
from hpcpar.plan.strategies import grid_sizes


@dataclass(frozen=True)
class Choice:
    """A grid with the layers that are model parallel (L_M) and domain parallel (L_D), and seconds
    of communication in an iteration.
    """

    pr: int
    pc: int
    model: tuple[str, ...]
    domain: tuple[str, ...]
    seconds: float


def choose(network: Network, ranks: int, batch: int, link: Link, pr: int | None = None) -> Choice:
    """The best split under Eq 9.

    Parameters
    ----------
    pr : int, optional
        Only grids with this Pr.
    """
    found = []
    for rows, columns in grid_sizes(ranks):
        if columns > batch or (pr is not None and rows != pr):
            continue
        shares = eq9_shares(network, rows, columns, batch, link)
        domain = tuple(name for name, (model_s, domain_s) in shares.items() if domain_s is not None
                       and domain_s < model_s)
        model = tuple(name for name in shares if name not in domain)
        seconds = sum(min(m, m if d is None else d) for m, d in shares.values())
        found.append(Choice(rows, columns, model, domain, seconds))
    return min(found, key=lambda c: c.seconds)
