"""The least sum over a graph that is too entangled to be eliminated: a good choice, and a bound
that no choice is below.

DenseNet's layers each read all layers before them: eliminating one joins all of its neighbours.
With the configurations of some layers held, the others fall apart and are eliminated exactly; which
layers are held changes from round to round until nothing gets better (a large neighbourhood
search). Edges that cost each end only what it pays at least leave a graph that can be eliminated,
whose least sum is the bound: where the choice meets it, it is the optimum.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcpar.search.eliminate import largest_table, neighbours, solve, total

#: Entries of the largest table of an exact elimination, its node's included; and of those while
#: layers are held.
EXACT, HELD = 200_000_000, 1_000_000
#: Rounds without a better choice after which the search begins anew, so many times, from the best
#: with a third of the nodes drawn.
PATIENCE, STARTS = 6, 8

Nodes = list[Any]
Edges = dict[tuple[int, int], Any]


def solve_any(nodes: Nodes, edges: Edges) -> tuple[float, list[int]]:
    """A bound of the least sum, and the place of the chosen entry of each node: where the graph
    falls, the least sum itself.

    Parameters
    ----------
    nodes, edges
        As of `hpcpar.search.eliminate.solve`.
    """
    sizes = [len(t) for t in nodes]
    if largest_table(sizes, edges) <= EXACT:
        return solve(nodes, edges)
    bound, best = _relaxed(nodes, edges)
    best, rng = _descended(nodes, edges, best), np.random.default_rng(0)
    for _ in range(STARTS - 1):
        if total(nodes, edges, best) <= bound * (1 + 1e-12):
            break
        start = [int(rng.integers(len(t))) if rng.random() < 1 / 3 else c
                 for t, c in zip(nodes, best, strict=True)]
        best = min(best, _descended(nodes, edges, start),
                   key=lambda chosen: total(nodes, edges, chosen))
    return min(bound, total(nodes, edges, best)), best


def _descended(nodes: Nodes, edges: Edges, chosen: list[int]) -> list[int]:
    """What a choice becomes while others than the held nodes change for the better."""
    sizes, often, idle, least = [len(t) for t in nodes], np.zeros(len(nodes)), 0, total(nodes, edges, chosen)
    while idle < PATIENCE:
        held = _held(sizes, edges, often)
        often[held] += 1
        chosen = _with_held(nodes, edges, chosen, held)
        now = total(nodes, edges, chosen)
        idle = 0 if now < least * (1 - 1e-12) else idle + 1
        least = now
    return chosen


def _relaxed(nodes: Nodes, edges: Edges) -> tuple[float, list[int]]:
    """The least sum where some edges cost each end only what it pays at least, whatever the other
    is.
    """
    sizes, own = [len(t) for t in nodes], [np.array(t, float) for t in nodes]
    ends = {pair: _ends(t) for pair, t in edges.items()}
    order = _forest_first(len(nodes),
                          sorted(edges,
                                 key=lambda pair:
                                 -float((edges[pair] - ends[pair][0][:, None]
                                         - ends[pair][1]).mean())))
    low, high = 0, len(order) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if largest_table(sizes, order[:middle]) <= HELD else (low, middle)
    for pair in order[low:]:
        for node, least in zip(pair, ends[pair], strict=True):
            own[node] += least
    return solve(own, {pair: edges[pair] for pair in order[:low]})


def _forest_first(count: int, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that join what is not joined yet come first."""
    root = list(range(count))

    def of(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    first, rest = list[tuple[int, int]](), list[tuple[int, int]]()
    for a, b in pairs:
        (rest if of(a) == of(b) else first).append((a, b))
        root[of(a)] = of(b)
    return [*first, *rest]


def _ends(table: Any) -> tuple[Any, Any]:
    """What each end pays at least: their sum is nowhere above the table."""
    one = table.min(axis=1)
    return one, (table - one[:, None]).min(axis=0)


def _held(sizes: list[int], edges: Edges, often: Any) -> list[int]:
    """Nodes without which the others can be eliminated: those that were held least often, of these
    those with most neighbours.
    """
    out, around = list[int](), neighbours(len(sizes), edges)
    while around:
        cost, node = min((sizes[node] * math.prod(sizes[o] for o in others), node)
                         for node, others in around.items())
        if cost > HELD:
            node = min(around, key=lambda n: (often[n], -len(around[n])))
            out.append(node)
        others = around.pop(node)
        for o in others:
            around[o].discard(node)
            if cost <= HELD:
                around[o] |= others - {o}
    # without them from the start, others may be the cheapest
    while largest_table(sizes, free := [pair for pair in edges if not set(pair) & set(out)]) > HELD:
        around = neighbours(len(sizes), free)
        out.append(max(around, key=lambda n: len(around[n])))
    return out


def _with_held(nodes: Nodes, edges: Edges, chosen: list[int], held: list[int]) -> list[int]:
    """The best choice of all others while some nodes stay as they are."""
    fixed = set(held)
    free = [node for node in range(len(nodes)) if node not in fixed]
    place = {node: i for i, node in enumerate(free)}
    own, inside = {node: nodes[node] for node in free}, dict[tuple[int, int], Any]()
    for (a, b), t in edges.items():
        if a in place and b in place:
            inside[place[a], place[b]] = t
        elif a in place:
            own[a] = own[a] + t[:, chosen[b]]
        elif b in place:
            own[b] = own[b] + t[chosen[a]]
    _, found = solve([own[node] for node in free], inside)
    return [found[place[node]] if node in place else chosen[node] for node in range(len(nodes))]
