"""The choice that minimises a sum of node and edge tables over a graph: node and edge elimination
(OptCNN, Algorithm 1), exactly.

A node between two others is eliminated by minimising over its configurations, which leaves an edge
between its neighbours (Eq 2); parallel edges are added (Eq 3). Where these two rules leave more
than K = 2 nodes, the same step is made with all neighbours of a node at once (variable
elimination), the cheapest node first, so that branching graphs stay tractable. Undone in reverse
order, the eliminations give the optimal configuration of every node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Entries of one block of a minimisation: what the cache of a core holds (its second level).
BLOCK = 131_072


@dataclass(frozen=True)
class Eliminations:
    """How the graph fell.

    Attributes
    ----------
    nodes, edges : int
        Node and edge eliminations of the papers' two rules.
    kept : int
        K, the nodes that these two rules leave.
    """

    nodes: int
    edges: int
    kept: int


def count(size: int, pairs: list[tuple[int, int]]) -> Eliminations:
    """Apply the papers' two rules to the graph alone."""
    into: list[list[int]] = [[] for _ in range(size)]
    out: list[list[int]] = [[] for _ in range(size)]
    for a, b in pairs:
        into[b].append(a)
        out[a].append(b)
    nodes = edges = 0
    alive = set(range(size))
    changed = True
    while changed:
        changed = False
        for a in sorted(alive):
            for b in set(out[a]):
                double = out[a].count(b) - 1
                if double:
                    edges += double
                    out[a] = [x for x in out[a] if x != b] + [b]
                    into[b] = [x for x in into[b] if x != a] + [a]
                    changed = True
        for j in sorted(alive):
            if len(into[j]) == 1 and len(out[j]) == 1:
                i, k = into[j][0], out[j][0]
                out[i][out[i].index(j)] = k
                into[k][into[k].index(j)] = i
                alive.discard(j)
                into[j], out[j] = [], []
                nodes += 1
                changed = True
    return Eliminations(nodes, edges, len(alive))


def neighbours(size: int, pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Of each node those that it has an edge with."""
    around: dict[int, set[int]] = {node: set() for node in range(size)}
    for a, b in pairs:
        around[a].add(b)
        around[b].add(a)
    return around


def largest_table(sizes: list[int], pairs: Iterable[tuple[int, int]]) -> int:
    """Entries of the largest table that eliminating a graph minimises, the cheapest node first."""
    around = neighbours(len(sizes), pairs)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[o] for o in around[node])

    costs, most = {node: entries(node) for node in around}, 0
    while costs:
        node = min(costs, key=costs.__getitem__)
        most, others = max(most, costs.pop(node)), around.pop(node)
        for o in others:
            around[o] |= others
            around[o] -= {o, node}
            costs[o] = entries(o)
    return most


def total(nodes: list[Any], edges: dict[tuple[int, int], Any], chosen: list[int]) -> float:
    """The sum of a choice of one entry for each node."""
    return float(sum(t[c] for t, c in zip(nodes, chosen, strict=True))
                 + sum(t[chosen[a], chosen[b]] for (a, b), t in edges.items()))


@dataclass
class _Factor:
    """A table over some nodes, its axes in their order."""

    nodes: tuple[int, ...]
    table: Any


def solve(nodes: list[Any], edges: dict[tuple[int, int], Any]) -> tuple[float, list[int]]:
    """The least sum, and the place of the chosen entry of each node.

    Parameters
    ----------
    nodes : list of ndarray
        [configurations] of each node.
    edges : dict
        (a, b) -> [configurations of a, configurations of b]; both orders may occur.

    Its tables may be large (see `largest_table`): `hpcpar.search.approximate_elimination` is for
    any graph.
    """
    sizes = [len(t) for t in nodes]
    factors: dict[frozenset[int], _Factor] = {}
    _Solver.join(factors, [_Factor((a, b), t) for (a, b), t in edges.items()])
    return _Solver(sizes, [np.asarray(t, float) for t in nodes], factors).run()


class _Solver:
    """Variable elimination with the cheapest node first; equal products of equal tables are
    computed once.
    """

    def __init__(self, sizes: list[int], nodes: list[Any],
                 factors: dict[frozenset[int], _Factor]) -> None:
        self.sizes, self.nodes, self.factors = sizes, nodes, factors
        self.total = 0.0
        self.undo: list[tuple[int, Any, list[_Factor]]] = []
        self._known: dict[Any, tuple[Any, Any]] = {}
        self.touching: dict[int, set[frozenset[int]]] = {n: set() for n in range(len(sizes))}
        for key in factors:
            for n in key:
                self.touching[n].add(key)

    @staticmethod
    def join(factors: dict[frozenset[int], _Factor], new: list[_Factor]) -> None:
        """Add tables over the same nodes."""
        for f in new:
            key = frozenset(f.nodes)
            old = factors.get(key)
            if old is None:
                factors[key] = f
            else:
                order = [f.nodes.index(n) for n in old.nodes]
                factors[key] = _Factor(old.nodes, old.table + f.table.transpose(order))

    def run(self) -> tuple[float, list[int]]:
        costs = {node: (self._entries(node), node) for node in range(len(self.sizes))}
        while costs:
            _, node = min(costs.values())
            del costs[node]
            for other in self._eliminate(node):
                costs[other] = (self._entries(other), other)
        chosen = [0] * len(self.sizes)
        for node, own, factors in reversed(self.undo):
            line = own
            for f in factors:
                line = line + f.table[tuple(slice(None) if n == node else chosen[n]
                                            for n in f.nodes)]
            chosen[node] = int(np.argmin(line))
        return float(self.total), chosen

    def _entries(self, node: int) -> int:
        around = set().union(*self.touching[node]) - {node} if self.touching[node] else set()
        return self.sizes[node] * math.prod(self.sizes[o] for o in around)

    def _eliminate(self, node: int) -> tuple[int, ...]:
        """Minimise a node away; returns those that it was joined to."""
        keys = sorted(self.touching.pop(node), key=sorted)
        factors = [self.factors.pop(key) for key in keys]
        for key in keys:
            for n in key:
                if n != node:
                    self.touching[n].discard(key)
        others = tuple(sorted(set().union(*keys) - {node})) if keys else ()
        self.undo.append((node, self.nodes[node], factors))
        table = self._minimise(node, factors, others)
        if not others:
            self.total += float(table)
        elif len(others) == 1:
            self.nodes[others[0]] = self.nodes[others[0]] + table
        else:
            self.join(self.factors, [_Factor(others, table)])
            for o in others:
                self.touching[o].add(frozenset(others))
        return others

    def _minimise(self, node: int, factors: list[_Factor], others: tuple[int, ...]) -> Any:
        """min over the node of its own table and all factors."""
        axes = (node, *others)
        key = (id(self.nodes[node]), *((id(f.table), *map(axes.index, f.nodes)) for f in factors))
        if key not in self._known:
            arranged = []
            for f in factors:
                order = sorted(range(len(f.nodes)), key=lambda i, f=f: axes.index(f.nodes[i]))  # type: ignore[misc]
                # rows that lie in one piece are added twice as fast
                lines = np.ascontiguousarray(f.table.transpose(order))
                arranged.append(lines.reshape([self.sizes[n] if n in f.nodes else 1 for n in axes]))
            found = _blocks(arranged, self.nodes[node],
                            [self.sizes[o] for o in others]) if others else np.min(self.nodes[node])
            self._known[key] = (found, (self.nodes[node], factors))  # keep what the key names alive
        return self._known[key][0]


def _blocks(arranged: list[Any], own: Any, sizes: list[int]) -> Any:
    """Minimise over the first axis, whose rows are compared as wholes, in blocks of the second."""
    table = np.empty(sizes)
    # what is small is added first, and the node's own table to the smallest
    first, *rest = sorted(arranged, key=lambda t: t.size)
    first = first + own.reshape(-1, *(1 for _ in sizes))
    rows = max(1, BLOCK // (math.prod(sizes[1:]) * len(own)))
    room = np.empty((len(own), min(rows, sizes[0]), *sizes[1:]))
    for begin in range(0, sizes[0], rows):
        part = slice(begin, begin + rows)
        whole = first[:, part] if first.shape[1] > 1 else first
        for t in rest:
            here = t[:, part] if t.shape[1] > 1 else t
            shape = np.broadcast_shapes(whole.shape, here.shape)
            whole = np.add(whole, here,
                           out=room[:,
                                    : shape[1]]) if shape[2:] == room.shape[2:] and shape[
                1] > 1 else whole + here
        np.min(whole, axis=0, out=table[part])
    return table
