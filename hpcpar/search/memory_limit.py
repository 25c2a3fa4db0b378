"""The fastest choice within a memory limit, exactly: elimination with fronts of (seconds, bytes)
instead of single minima.

Of all ways to choose what was eliminated, only those that no other beats in both seconds and bytes
can be part of the optimum. Fronts grow with the graph, so this is for small cases;
`hpcpar.search.layerwise` falls back on the Lagrangian bound.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

#: Labels that may be made before giving up.
BUDGET = 400_000


@dataclass(frozen=True)
class Label:
    """One way to choose some nodes: its sums, and the choices as a chain of (node, choice) and
    earlier labels.
    """

    seconds: float
    bytes: float
    choice: tuple[int, int] | None = None
    parts: tuple[Label, ...] = ()

    def collect(self, into: dict[int, int]) -> None:
        """Write all choices into a dictionary."""
        stack = [self]
        while stack:
            label = stack.pop()
            if label.choice is not None:
                into[label.choice[0]] = label.choice[1]
            stack.extend(label.parts)


Front = list[Label]
Factor = tuple[tuple[int, ...], dict[tuple[int, ...], Front]]


def front(labels: list[Label]) -> Front:
    """Those that no other label beats in both sums."""
    out: Front = []
    for label in sorted(labels, key=lambda x: (x.seconds, x.bytes)):
        if not out or label.bytes < out[-1].bytes:
            out.append(label)
    return out


def solve_within(
    nodes: list[tuple[Any, Any]], edges: dict[tuple[int, int], tuple[Any, Any]], limit: float, upper_s: float
) -> tuple[float, list[int]] | None:
    """The least seconds with at most `limit` bytes, and the choice of every node; None where it
    would take too long, or nothing fits.

    Parameters
    ----------
    nodes : list of (seconds, bytes)
        [configurations] of each node.
    edges : dict
        (a, b) -> (seconds, bytes), [configurations of a, configurations of b].
    upper_s : float
        Seconds of some plan that fits: ways that take longer are dropped.
    """
    sizes = [len(seconds) for seconds, _ in nodes]
    factors: list[Factor] = [
        ((n,), {(c,): [Label(float(s[c]), float(b[c]))] for c in range(sizes[n])}) for n, (s, b) in enumerate(nodes)
    ]
    for (a, b), (seconds, held) in edges.items():
        pairs = itertools.product(range(sizes[a]), range(sizes[b]))
        factors.append(((a, b),
                        {(i, j): [Label(float(seconds[i, j]), float(held[i, j]))]
                         for i, j in pairs}))
    made = 0
    left = set(range(len(nodes)))
    while left:
        node = min(left, key=lambda n: (len(_around(n, factors)), n))
        left.discard(node)
        touching = [f for f in factors if node in f[0]]
        factors = [f for f in factors if node not in f[0]]
        others = tuple(sorted(_around(node, touching)))
        table: dict[tuple[int, ...], Front] = {}
        for at in itertools.product(*(range(sizes[o]) for o in others)):
            place = dict(zip(others, at, strict=True))
            found: list[Label] = []
            for c in range(sizes[node]):
                place[node] = c
                for parts in itertools.product(*(t[tuple(place[n] for n in names)]
                                                 for names, t in touching)):
                    made += 1
                    seconds, held = sum(p.seconds for p in parts), sum(p.bytes for p in parts)
                    if held <= limit and seconds <= upper_s * (1 + 1e-12):
                        found.append(Label(seconds, held, (node, c), parts))
                if made > BUDGET:
                    return None
            table[at] = front(found)
        factors.append((others, table))
    best: Front = [Label(0.0, 0.0)]
    for _, last in factors:
        best = front([Label(a.seconds + b.seconds, a.bytes + b.bytes, None, (a, b)) for a in best
                      for b in last[()]])
    fitting = [label for label in best if label.bytes <= limit]
    if not fitting:
        return None
    chosen: dict[int, int] = {}
    least = min(fitting, key=lambda x: x.seconds)
    least.collect(chosen)
    return least.seconds, [chosen[n] for n in range(len(nodes))]


def _around(node: int, factors: list[Factor]) -> set[int]:
    return {n for names, _ in factors if node in names for n in names} - {node}
