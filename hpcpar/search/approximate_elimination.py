"""Decides a good choice and a lower bound, on graphs that are too dense to eliminate.

In DenseNet every layer reads all layers before it, so eliminating one joins all of its neighbors.
If the configurations of some layers are fixed, the others separate, and elimination solves them
exactly. The fixed layers change from round to round until nothing improves (large neighborhood
search). The bound comes from a relaxed graph, in which some edges charge each end only its least
cost under any configuration of the other end. If choice and bound meet, the choice is optimal.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcpar.search.edge_elimination import (
    Edges,
    Floats,
    Nodes,
    largest_table,
    neighbors,
    solve,
    total,
)

#: Limit of a table's entries in elimination: exact, and with fixed layers or relaxed edges.
EXACT, FIXED = 200_000_000, 1_000_000
#: Rounds without improvement that end a descent.
IDLE_ROUNDS = 6
#: Number of descents; each starts at the best choice with a third of the nodes drawn at random.
STARTS = 8

Pairs = list[tuple[int, int]]


def solve_any(nodes: Nodes, edges: Edges) -> tuple[float, list[int]]:
    """A lower bound of the sum, and the index of the chosen entry of each node.

    The bound is the minimum itself if elimination solves the graph exactly.
    """
    sizes = [len(t) for t in nodes]
    if largest_table(sizes, edges) <= EXACT:
        return solve(nodes, edges)
    bound, best = _relaxed(nodes, edges)
    best = _descend(nodes, edges, best)
    rng = np.random.default_rng(0)
    for _ in range(STARTS - 1):
        if total(nodes, edges, best) <= bound * (1 + 1e-12):
            break
        start = [int(rng.integers(len(t))) if rng.random() < 1 / 3 else c
                 for t, c in zip(nodes, best, strict=True)]
        best = min(best, _descend(nodes, edges, start),
                   key=lambda chosen: total(nodes, edges, chosen))
    return min(bound, total(nodes, edges, best)), best


def _descend(nodes: Nodes, edges: Edges, chosen: list[int]) -> list[int]:
    """Improve a choice: every round fixes some nodes and optimizes the others."""
    sizes = [len(t) for t in nodes]
    times_fixed = np.zeros(len(nodes))
    least = total(nodes, edges, chosen)
    idle = 0
    while idle < IDLE_ROUNDS:
        fixed = _nodes_to_fix(sizes, edges, times_fixed)
        times_fixed[fixed] += 1
        chosen = _solve_others(nodes, edges, chosen, fixed)
        new = total(nodes, edges, chosen)
        idle = 0 if new < least * (1 - 1e-12) else idle + 1
        least = new
    return chosen


def _relaxed(nodes: Nodes, edges: Edges) -> tuple[float, list[int]]:
    """The minimum of a relaxed graph, which is a lower bound, and the choice that attains it.

    Edges that lose most by the relaxation keep their tables, up to tables of `FIXED` entries in
    elimination. The other edges are split into a least cost for each end.
    """
    sizes = [len(t) for t in nodes]
    own = [np.array(t, float) for t in nodes]
    ends = {pair: _least_of_ends(t) for pair, t in edges.items()}

    def lost(pair: tuple[int, int]) -> float:
        producer, consumer = ends[pair]
        return float((edges[pair] - producer[:, None] - consumer).mean())

    order = _forest_first(len(nodes), sorted(edges, key=lambda pair: -lost(pair)))
    low, high = 0, len(order) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if largest_table(sizes, order[:middle]) <= FIXED:
            low = middle
        else:
            high = middle
    for pair in order[low:]:
        for node, least in zip(pair, ends[pair], strict=True):
            own[node] += least
    return solve(own, {pair: edges[pair] for pair in order[:low]})


def _forest_first(count: int, pairs: Pairs) -> Pairs:
    """The edges in a new order: a spanning forest first."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    forest: Pairs = []
    rest: Pairs = []
    for a, b in pairs:
        (rest if root(a) == root(b) else forest).append((a, b))
        parent[root(a)] = root(b)
    return [*forest, *rest]


def _least_of_ends(table: Floats) -> tuple[Floats, Floats]:
    """A least cost for each end, such that their sum never exceeds the table."""
    producer = table.min(axis=1)
    return producer, (table - producer[:, None]).min(axis=0)


def _nodes_to_fix(sizes: list[int], edges: Edges, times_fixed: NDArray[np.float64]) -> list[int]:
    """Nodes to fix so that the others can be eliminated.

    It prefers nodes that were fixed least often, and among them those with the most neighbors.
    """
    fixed: list[int] = []
    adjacent = neighbors(len(sizes), edges)
    while adjacent:
        cost, node = min((sizes[node] * math.prod(sizes[o] for o in others), node)
                         for node, others in adjacent.items())
        if cost > FIXED:
            node = min(adjacent, key=lambda n: (times_fixed[n], -len(adjacent[n])))
            fixed.append(node)
        others = adjacent.pop(node)
        for other in others:
            adjacent[other].discard(node)
            if cost <= FIXED:
                adjacent[other] |= others - {other}
    # without the fixed nodes the order of elimination changes, and tables may be larger
    free = _pairs_without(edges, fixed)
    while largest_table(sizes, free) > FIXED:
        adjacent = neighbors(len(sizes), free)
        fixed.append(max(adjacent, key=lambda n: len(adjacent[n])))
        free = _pairs_without(edges, fixed)
    return fixed


def _pairs_without(edges: Edges, nodes: list[int]) -> Pairs:
    return [(a, b) for a, b in edges if a not in nodes and b not in nodes]


def _solve_others(nodes: Nodes, edges: Edges, chosen: list[int], fixed: list[int]) -> list[int]:
    """The best choice for all other nodes while the fixed ones keep theirs."""
    free = sorted(set(range(len(nodes))) - set(fixed))
    place = {node: i for i, node in enumerate(free)}
    own = [nodes[node] for node in free]
    inside: Edges = {}
    for (a, b), table in edges.items():
        if a in place and b in place:
            inside[place[a], place[b]] = table
        elif a in place:
            own[place[a]] = own[place[a]] + table[:, chosen[b]]
        elif b in place:
            own[place[b]] = own[place[b]] + table[chosen[a]]
    _, entries = solve(own, inside)
    best = list(chosen)
    for node, i in place.items():
        best[node] = entries[i]
    return best
