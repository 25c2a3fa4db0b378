"""Decides the fastest choice within a memory limit, from the cost tables.

`fastest_within` bisects a price of memory (Lagrangian relaxation), which gives a choice and a lower
bound. If a gap remains and the problem is small, `solve_within` finds the optimum by elimination
with Pareto fronts of (seconds, bytes) instead of single minima.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, TypeAlias

import numpy as np

from hpcpar.search.approximate_elimination import solve_any
from hpcpar.search.edge_elimination import Floats
from hpcpar.search.tables import Table, Tables

#: Limit of the labels in the exact elimination.
BUDGET = 400_000
#: Number of bisections of the price of memory.
BISECTIONS = 24
#: Limit of the quadruplings of the price of memory until a plan fits.
QUADRUPLINGS = 60


def minimize(tables: Tables, seconds_weight: float = 1.0,
             bytes_weight: float = 0.0) -> tuple[float, list[int]]:
    """Minimize a weighted sum of seconds and bytes.

    Returns
    -------
    float
        Lower bound of the sum; the minimum itself if elimination solves the graph exactly.
    list of int
        Index of the chosen entry of each unit.
    """
    weighted: dict[Table, Floats] = {}
    for table in (*tables.nodes, *tables.edges.values()):
        if table in weighted:
            continue
        if (seconds_weight, bytes_weight) == (1.0, 0.0):
            weighted[table] = table.seconds
        else:
            weighted[table] = seconds_weight * table.seconds + bytes_weight * table.bytes
    return solve_any([weighted[t] for t in tables.nodes],
                     {pair: weighted[t] for pair, t in tables.edges.items()})


def fastest_within(tables: Tables, limit: float,
                   smallest: list[int]) -> tuple[float, list[int], bool]:
    """The fastest choice found with at most `limit` bytes, or the smallest if none fits.

    For any price of memory, the minimum of seconds + price * (bytes - limit) is a lower bound of
    the seconds of every plan that fits. Bisection narrows the price between plans that fit and
    plans that do not.

    Parameters
    ----------
    smallest : list of int
        The choice with the fewest bytes.

    Returns
    -------
    float
        Lower bound of the seconds of every plan that fits; 0 if none fits.
    list of int
        Index of the chosen entry of each unit.
    bool
        True if the choice is optimal.
    """
    if tables.memory(smallest) > limit:
        return 0.0, smallest, False
    best, best_s = smallest, tables.price(smallest)
    unit_price = best_s / max(1.0, tables.memory(smallest))
    # a negligible price prefers a plan that fits among equally fast ones
    value, places = minimize(tables, 1.0, 1e-10 * unit_price)
    bound = value - 1e-10 * unit_price * limit
    if tables.memory(places) <= limit:
        return bound, places, True
    low, high = 0.0, unit_price
    for _ in range(QUADRUPLINGS):
        value, places = minimize(tables, 1.0, high)
        bound = max(bound, value - high * limit)
        if tables.memory(places) <= limit:
            break
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        price = (low + high) / 2
        value, places = minimize(tables, 1.0, price)
        bound = max(bound, value - price * limit)
        if best_s <= bound * (1 + 1e-9):
            break
        if tables.memory(places) > limit:
            low = price
            continue
        high = price
        if tables.price(places) < best_s:
            best, best_s = places, tables.price(places)
    if best_s <= bound * (1 + 1e-9):
        return bound, best, True
    exact = solve_within([(t.seconds, t.bytes) for t in tables.nodes],
                         {pair: (t.seconds, t.bytes) for pair, t in tables.edges.items()},
                         limit, best_s)
    return (bound, best, False) if exact is None else (*exact, True)


class Label(NamedTuple):
    """The sums of a choice for some nodes, and the choice: (node, index of its entry)."""

    seconds: float
    bytes: float
    choices: tuple[tuple[int, int], ...] = ()


#: Labels that no other beats in both seconds and bytes.
Front: TypeAlias = list[Label]
#: Nodes, and a front for each combination of their entries.
Factor: TypeAlias = tuple[tuple[int, ...], dict[tuple[int, ...], Front]]


def joined(labels: tuple[Label, ...], *choices: tuple[int, int]) -> Label:
    """The sum of labels for different nodes, with further choices."""
    return Label(sum(label.seconds for label in labels), sum(label.bytes for label in labels),
                 sum((label.choices for label in labels), choices))


def pareto_front(labels: list[Label]) -> Front:
    """The labels that no other label beats in both seconds and bytes."""
    front: Front = []
    for label in sorted(labels, key=lambda x: (x.seconds, x.bytes)):
        if not front or label.bytes < front[-1].bytes:
            front.append(label)
    return front


def solve_within(nodes: list[tuple[Floats, Floats]],
                 edges: dict[tuple[int, int], tuple[Floats, Floats]],
                 limit: float, upper_s: float) -> tuple[float, list[int]] | None:
    """The least seconds with at most `limit` bytes, and the chosen entry of each node.

    None if nothing fits, or if the search exceeds `BUDGET` labels.

    Parameters
    ----------
    nodes : list of (seconds, bytes)
        [configurations] of each node.
    edges : dict
        (a, b) -> (seconds, bytes), [configurations of a, configurations of b].
    upper_s : float
        Seconds of a plan that fits; the search drops slower labels.
    """
    sizes = [len(seconds) for seconds, _ in nodes]
    factors = [_factor((node,), *tables) for node, tables in enumerate(nodes)]
    factors += [_factor(pair, *tables) for pair, tables in edges.items()]
    count = 0
    left = set(range(len(nodes)))
    while left:
        node = min(left, key=lambda n: (len(_neighbors(n, factors)), n))
        left.discard(node)
        touching = [f for f in factors if node in f[0]]
        factors = [f for f in factors if node not in f[0]]
        others = tuple(sorted(_neighbors(node, touching)))
        fronts: dict[tuple[int, ...], Front] = {}
        for entries in itertools.product(*(range(sizes[other]) for other in others)):
            labels: list[Label] = []
            for entry in range(sizes[node]):
                entry_of = dict(zip((*others, node), (*entries, entry), strict=True))
                sums = [joined(parts, (node, entry)) for parts in itertools.product(
                    *(table[tuple(entry_of[n] for n in names)] for names, table in touching))]
                count += len(sums)
                labels += [each for each in sums
                           if each.bytes <= limit and each.seconds <= upper_s * (1 + 1e-12)]
                if count > BUDGET:
                    return None
            fronts[entries] = pareto_front(labels)
        factors.append((others, fronts))
    return _fastest(factors, limit)


def _fastest(factors: list[Factor], limit: float) -> tuple[float, list[int]] | None:
    """The fastest combination that fits, from the fronts of the graph's components."""
    front: Front = [Label(0.0, 0.0)]
    for _, component in factors:
        front = pareto_front([joined(pair) for pair in itertools.product(front, component[()])])
    fastest = next((label for label in front if label.bytes <= limit), None)
    if fastest is None:
        return None
    return fastest.seconds, [entry for _, entry in sorted(fastest.choices)]


def _factor(nodes: tuple[int, ...], seconds: Floats, n_bytes: Floats) -> Factor:
    """A table with a label for each entry."""
    return nodes, {entry: [Label(float(seconds[entry]), float(n_bytes[entry]))]
                   for entry in np.ndindex(*seconds.shape)}


def _neighbors(node: int, factors: list[Factor]) -> set[int]:
    return {n for names, _ in factors if node in names for n in names} - {node}
