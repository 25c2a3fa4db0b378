"""Decides the exact minimum of a sum of tables on a graph, by elimination (OptCNN, Algorithm 1).

Node elimination minimizes over the configurations of a node with two neighbors, and replaces it by
an edge between them (Eq 2). Edge elimination adds parallel edges (Eq 3). These rules may leave more
than K = 2 nodes. Variable elimination generalizes them to any number of neighbors, the cheapest
node first, which keeps branching graphs tractable. Undoing the eliminations in reverse order gives
the optimal configuration of every node.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
#: Tables of nodes: [configurations] each.
Nodes: TypeAlias = list[Floats]
#: Tables of edges: (a, b) -> [configurations of a, configurations of b]; both orders may occur.
Edges: TypeAlias = dict[tuple[int, int], Floats]

#: Entries of a block in a minimization; a block fits a core's second-level cache.
BLOCK = 131_072


@dataclass(frozen=True)
class Eliminations:
    """Numbers of node and edge eliminations, and of the nodes that they leave (K)."""

    nodes: int
    edges: int
    kept: int


def count_eliminations(size: int, pairs: list[tuple[int, int]]) -> Eliminations:
    """Apply the papers' two rules to a graph of `size` nodes, without tables."""
    sources: list[list[int]] = [[] for _ in range(size)]
    targets: list[list[int]] = [[] for _ in range(size)]
    for a, b in pairs:
        sources[b].append(a)
        targets[a].append(b)
    nodes = edges = 0
    alive = set(range(size))
    changed = True
    while changed:
        changed = False
        for a in sorted(alive):
            for b in set(targets[a]):
                parallel = targets[a].count(b) - 1
                if parallel:
                    edges += parallel
                    targets[a] = [x for x in targets[a] if x != b] + [b]
                    sources[b] = [x for x in sources[b] if x != a] + [a]
                    changed = True
        for j in sorted(alive):
            if len(sources[j]) == 1 and len(targets[j]) == 1:
                i, k = sources[j][0], targets[j][0]
                targets[i][targets[i].index(j)] = k
                sources[k][sources[k].index(j)] = i
                alive.discard(j)
                sources[j], targets[j] = [], []
                nodes += 1
                changed = True
    return Eliminations(nodes, edges, len(alive))


def neighbors(size: int, pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Node -> nodes that share an edge with it."""
    adjacent: dict[int, set[int]] = {node: set() for node in range(size)}
    for a, b in pairs:
        adjacent[a].add(b)
        adjacent[b].add(a)
    return adjacent


def largest_table(sizes: list[int], pairs: Iterable[tuple[int, int]]) -> int:
    """Entries of the largest table in an elimination, the cheapest node first."""
    adjacent = neighbors(len(sizes), pairs)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[other] for other in adjacent[node])

    costs = {node: entries(node) for node in adjacent}
    largest = 0
    while costs:
        node = min(costs, key=costs.__getitem__)
        largest = max(largest, costs.pop(node))
        others = adjacent.pop(node)
        for other in others:
            adjacent[other] |= others
            adjacent[other] -= {other, node}
            costs[other] = entries(other)
    return largest


def total(nodes: Nodes, edges: Edges, chosen: list[int]) -> float:
    """The sum of all tables for a chosen entry of each node."""
    return float(sum(t[c] for t, c in zip(nodes, chosen, strict=True))
                 + sum(t[chosen[a], chosen[b]] for (a, b), t in edges.items()))


def solve(nodes: Nodes, edges: Edges) -> tuple[float, list[int]]:
    """The minimum of the sum, and the index of the chosen entry of each node.

    Intermediate tables may be large (see `largest_table`);
    `hpcpar.search.approximate_elimination` handles any graph.
    """
    return _Elimination(nodes, edges).run()


@dataclass(frozen=True)
class _Factor:
    """A table with one axis per node.

    Factors with the same table have the same `number`, so that equal minimizations happen once.
    """

    nodes: tuple[int, ...]
    table: Floats
    number: int


class _Elimination:
    """Variable elimination, the cheapest node first."""

    def __init__(self, nodes: Nodes, edges: Edges) -> None:
        self.sizes = [len(t) for t in nodes]
        self._numbers = itertools.count()
        numbers = self._numbered([*nodes, *edges.values()])
        self.nodes = [_Factor((node,), np.asarray(t, float), number)
                      for (node, t), number in zip(enumerate(nodes), numbers, strict=False)]
        self.factors: dict[frozenset[int], _Factor] = {}
        self.touching: list[set[frozenset[int]]] = [set() for _ in nodes]
        for ((a, b), t), number in zip(edges.items(), numbers[len(nodes):], strict=True):
            self._add(_Factor((a, b), t, number))
        self.constant = 0.0
        #: Eliminated nodes in order, each with its table and the factors that contained it.
        self.eliminated: list[tuple[_Factor, list[_Factor]]] = []
        self._minima: dict[tuple[int | tuple[int, ...], ...], tuple[Floats, int]] = {}

    def _numbered(self, tables: list[Floats]) -> list[int]:
        """One number per table, equal for the same object; equal layers share tables."""
        numbers: dict[int, int] = {}
        return [numbers.setdefault(id(t), next(self._numbers)) for t in tables]

    def _add(self, factor: _Factor) -> None:
        """Add a factor; parallel edges add up (Eq 3)."""
        key = frozenset(factor.nodes)
        old = self.factors.get(key)
        if old is not None:
            order = [factor.nodes.index(node) for node in old.nodes]
            factor = _Factor(old.nodes, old.table + factor.table.transpose(order),
                             next(self._numbers))
        self.factors[key] = factor
        for node in key:
            self.touching[node].add(key)

    def run(self) -> tuple[float, list[int]]:
        """Eliminate all nodes, then choose their entries in reverse order."""
        costs = {node: (self._entries(node), node) for node in range(len(self.sizes))}
        while costs:
            _, node = min(costs.values())
            del costs[node]
            for other in self._eliminate(node):
                costs[other] = (self._entries(other), other)
        chosen = [0] * len(self.sizes)
        for own, factors in reversed(self.eliminated):
            node = own.nodes[0]
            node_costs = own.table
            for f in factors:
                place = tuple(slice(None) if n == node else chosen[n] for n in f.nodes)
                node_costs = node_costs + f.table[place]
            chosen[node] = int(np.argmin(node_costs))
        return float(self.constant), chosen

    def _entries(self, node: int) -> int:
        """Entries of the table in the elimination of a node."""
        others = set[int]().union(*self.touching[node]) - {node}
        return self.sizes[node] * math.prod(self.sizes[other] for other in others)

    def _eliminate(self, node: int) -> tuple[int, ...]:
        """Minimize over a node; returns its neighbors, which the new table joins."""
        keys = sorted(self.touching[node], key=sorted)
        factors = [self.factors.pop(key) for key in keys]
        for key in keys:
            for other in key:
                self.touching[other].discard(key)
        others = tuple(sorted(set[int]().union(*keys) - {node}))
        own = self.nodes[node]
        self.eliminated.append((own, factors))
        if not others:
            self.constant += float(np.min(own.table))
            return others
        table, number = self._minimum(own, factors, others)
        if len(others) == 1:
            neighbor = self.nodes[others[0]]
            self.nodes[others[0]] = _Factor(others, neighbor.table + table, next(self._numbers))
        else:
            self._add(_Factor(others, table, number))
        return others

    def _minimum(self, own: _Factor, factors: list[_Factor],
                 others: tuple[int, ...]) -> tuple[Floats, int]:
        """Minimum over a node of its table plus all factors (Eq 2), and the result's number."""
        axes = (*own.nodes, *others)
        key: tuple[int | tuple[int, ...], ...] = (
            own.number, *((f.number, *map(axes.index, f.nodes)) for f in factors)
        )
        if key not in self._minima:
            aligned = [self._aligned(f, axes) for f in factors]
            table = _minimize_first_axis(aligned, own.table, [self.sizes[o] for o in others])
            self._minima[key] = table, next(self._numbers)
        return self._minima[key]

    def _aligned(self, factor: _Factor, axes: tuple[int, ...]) -> Floats:
        """A factor's table with an axis for each of `axes`; missing axes have size 1."""
        places = [axes.index(node) for node in factor.nodes]
        # numpy adds contiguous rows twice as fast
        table = np.ascontiguousarray(factor.table.transpose(np.argsort(places)))
        return table.reshape([self.sizes[n] if n in factor.nodes else 1 for n in axes])


def _minimize_first_axis(tables: Sequence[Floats], own: Floats, sizes: list[int]) -> Floats:
    """Minimum over the first axis of the sum of broadcast tables, in blocks of the second axis.

    `own`, [first axis], is added to every entry; `sizes` has the sizes of the other axes.
    """
    minimum = np.empty(sizes)
    # add small tables first, and `own` to the smallest
    first, *rest = sorted(tables, key=lambda t: t.size)
    first = first + own.reshape(-1, *(1 for _ in sizes))
    rows = max(1, BLOCK // (math.prod(sizes[1:]) * len(own)))
    buffer = np.empty((len(own), min(rows, sizes[0]), *sizes[1:]))
    for begin in range(0, sizes[0], rows):
        block = slice(begin, begin + rows)
        sums = _second_axis(first, block)
        for table in rest:
            part = _second_axis(table, block)
            shape = np.broadcast_shapes(sums.shape, part.shape)
            if shape[1] > 1 and shape[2:] == buffer.shape[2:]:
                sums = np.add(sums, part, out=buffer[:, : shape[1]])
            else:
                sums = sums + part
        np.min(sums, axis=0, out=minimum[block])
    return minimum


def _second_axis(table: Floats, block: slice) -> Floats:
    return table[:, block] if table.shape[1] > 1 else table
