"""The fastest choice within a memory limit, from the cost tables.

`fastest_within` bisects a price of memory (Lagrangian relaxation), which gives a choice and a lower
bound. Where a gap is left and the case is small, `solve_within` closes it exactly: elimination with
Pareto fronts of (seconds, bytes) in place of single minima.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

from hpcpar.search.approximate_elimination import solve_any
from hpcpar.search.edge_elimination import Floats
from hpcpar.search.tables import Table, Tables

#: Labels that the exact elimination may make before it gives up.
BUDGET = 400_000
#: Bisections of the price of memory.
BISECTIONS = 24
#: Quadruplings of the price of memory until a plan fits.
QUADRUPLINGS = 60


def minimise(tables: Tables, seconds_weight: float = 1.0,
             bytes_weight: float = 0.0) -> tuple[float, list[int]]:
    """Minimises a weighted sum of seconds and bytes.

    Returns
    -------
    float
        A lower bound of the least sum; the least sum itself where the graph can be eliminated.
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
    """The fastest choice found with at most `limit` bytes; the smallest where nothing fits.

    For any price of memory, the minimum of seconds + price * (bytes - limit) is a lower bound of
    the seconds of every plan that fits. The price is bisected between plans that fit and plans that
    do not.

    Parameters
    ----------
    smallest : list of int
        The choice of the least bytes.

    Returns
    -------
    float
        Lower bound of the seconds of every plan that fits; 0 where none does.
    list of int
        Index of the chosen entry of each unit.
    bool
        Whether the choice is optimal.
    """
    if tables.memory(smallest) > limit:
        return 0.0, smallest, False
    best, best_s = smallest, tables.price(smallest)
    unit_price = best_s / max(1.0, tables.memory(smallest))
    # a price too small to count: among several fastest plans, one that fits wins
    value, places = minimise(tables, 1.0, 1e-10 * unit_price)
    bound = value - 1e-10 * unit_price * limit
    if tables.memory(places) <= limit:
        return bound, places, True
    low, high = 0.0, unit_price
    for _ in range(QUADRUPLINGS):
        value, places = minimise(tables, 1.0, high)
        bound = max(bound, value - high * limit)
        if tables.memory(places) <= limit:
            break
        low, high = high, 4 * high
    for _ in range(BISECTIONS):
        price = (low + high) / 2
        value, places = minimise(tables, 1.0, price)
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


@dataclass(frozen=True)
class Label:
    """The sums of one way to choose some nodes.

    Attributes
    ----------
    choice : (node, index of its entry) or None
        The last choice; None for a label that only joins others.
    parts : tuple of Label
        Labels that this one extends: together they hold the other choices.
    """

    seconds: float
    bytes: float
    choice: tuple[int, int] | None = None
    parts: tuple[Label, ...] = ()

    def choices(self) -> dict[int, int]:
        """The index of the chosen entry of every node that the label covers."""
        chosen: dict[int, int] = {}
        stack = [self]
        while stack:
            label = stack.pop()
            if label.choice is not None:
                node, entry = label.choice
                chosen[node] = entry
            stack.extend(label.parts)
        return chosen


Front: TypeAlias = list[Label]
#: Nodes, and a front for every combination of their entries.
Factor: TypeAlias = tuple[tuple[int, ...], dict[tuple[int, ...], Front]]


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
    """The least seconds with at most `limit` bytes, and the chosen entry of every node.

    None where nothing fits, or where more than `BUDGET` labels would be needed.

    Parameters
    ----------
    nodes : list of (seconds, bytes)
        [configurations] of each node.
    edges : dict
        (a, b) -> (seconds, bytes), [configurations of a, configurations of b].
    upper_s : float
        Seconds of some plan that fits: labels that take longer are dropped.
    """
    sizes = [len(seconds) for seconds, _ in nodes]
    factors = [_node_factor(node, *tables) for node, tables in enumerate(nodes)]
    factors += [_edge_factor(pair, *tables) for pair, tables in edges.items()]
    made = 0
    left = set(range(len(nodes)))
    while left:
        node = min(left, key=lambda n: (len(_around(n, factors)), n))
        left.discard(node)
        touching = [f for f in factors if node in f[0]]
        factors = [f for f in factors if node not in f[0]]
        others = tuple(sorted(_around(node, touching)))
        fronts: dict[tuple[int, ...], Front] = {}
        for at in itertools.product(*(range(sizes[other]) for other in others)):
            labels: list[Label] = []
            entry_of = dict(zip(others, at, strict=True))
            for entry in range(sizes[node]):
                entry_of[node] = entry
                for parts in itertools.product(*(table[tuple(entry_of[n] for n in names)]
                                                 for names, table in touching)):
                    made += 1
                    seconds = sum(p.seconds for p in parts)
                    held = sum(p.bytes for p in parts)
                    if held <= limit and seconds <= upper_s * (1 + 1e-12):
                        labels.append(Label(seconds, held, (node, entry), parts))
                if made > BUDGET:
                    return None
            fronts[at] = pareto_front(labels)
        factors.append((others, fronts))
    return _fastest(factors, limit, len(nodes))


def _fastest(factors: list[Factor], limit: float, size: int) -> tuple[float, list[int]] | None:
    """The fastest combination of the components' fronts that fits."""
    front: Front = [Label(0.0, 0.0)]
    for _, component in factors:
        front = pareto_front([Label(a.seconds + b.seconds, a.bytes + b.bytes, None, (a, b))
                              for a in front for b in component[()]])
    fitting = [label for label in front if label.bytes <= limit]
    if not fitting:
        return None
    fastest = min(fitting, key=lambda x: x.seconds)
    chosen = fastest.choices()
    return fastest.seconds, [chosen[node] for node in range(size)]


def _node_factor(node: int, seconds: Floats, held: Floats) -> Factor:
    return (node,), {(c,): [Label(float(s), float(b))]
                     for c, (s, b) in enumerate(zip(seconds, held, strict=True))}


def _edge_factor(pair: tuple[int, int], seconds: Floats, held: Floats) -> Factor:
    return pair, {(i, j): [Label(float(seconds[i, j]), float(held[i, j]))]
                  for i in range(seconds.shape[0]) for j in range(seconds.shape[1])}


def _around(node: int, factors: list[Factor]) -> set[int]:
    return {n for names, _ in factors if node in names for n in names} - {node}
