"""OptCNN's search problem as an integer program for scipy's HiGHS: a peer for edge elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Program:
    """A search problem as an integer program: minimize costs @ x subject to rows @ x = sums.

    Attributes
    ----------
    integral : ndarray
        1 for binary variables, 0 for continuous ones.
    starts : list of int
        First variable of every node, and the end of the last node's.
    """

    costs: Any
    rows: Any
    sums: Any
    integral: Any
    starts: list[int]


def integer_program(nodes: list[Any], edges: dict[tuple[int, int], Any]) -> Program:
    """The integer program of a graph with tables of nodes and edges.

    A node has one-hot binaries. An edge has a continuous variable per pair, whose marginals are the
    binaries of both ends.
    """
    starts = [int(n) for n in np.cumsum([0, *map(len, nodes)])]
    costs, row, column, value = list(nodes), [], [], []
    sums: list[Any] = [np.ones(len(nodes))]
    for i, t in enumerate(nodes):
        row.append(np.full(len(t), i))
        column.append(starts[i] + np.arange(len(t)))
        value.append(np.ones(len(t)))
    lines, at = len(nodes), starts[-1]
    for (a, b), t in edges.items():
        places = at + np.arange(t.size).reshape(t.shape)
        for end, axis in ((a, 1), (b, 0)):
            count = t.shape[1 - axis]
            ends = np.arange(count)
            row += [np.repeat(lines + ends, t.shape[axis]), lines + ends]
            column += [(places if axis == 1 else places.T).ravel(), starts[end] + ends]
            value += [np.ones(t.size), -np.ones(count)]
            sums.append(np.zeros(count))
            lines += count
        costs.append(t.ravel())
        at += t.size
    rows = coo_array((np.concatenate(value), (np.concatenate(row), np.concatenate(column))),
                     shape=(lines, at)).tocsr()
    return Program(np.concatenate(costs), rows, np.concatenate(sums),
                   (np.arange(at) < starts[-1]).astype(int), starts)


def solve_program(p: Program, limit_s: float) -> list[int] | None:
    """The chosen configuration of every node; None where the time runs out."""
    scale = 1 / np.abs(p.costs).max()
    found = milp(p.costs * scale, integrality=p.integral, bounds=Bounds(0, 1),
                 constraints=LinearConstraint(p.rows, p.sums, p.sums),
                 options={"time_limit": limit_s, "mip_rel_gap": 1e-8})
    if found.status != 0:
        return None
    return [int(np.argmax(found.x[a:b])) for a, b in zip(p.starts, p.starts[1:], strict=False)]
