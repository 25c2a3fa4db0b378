"""Node and edge elimination: the exact optimum of any graph, and the papers' own counts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpar.network import builtin
from hpcpar.search import edge_elimination
from hpcpar.search.edge_elimination import Eliminations, count_eliminations, solve

Edges = dict[tuple[int, int], Any]
Problem = tuple[list[Any], Edges]


def value(nodes: list[Any], edges: Edges, chosen: Any) -> float:
    """The sum of a choice."""
    total = sum(float(t[c]) for t, c in zip(nodes, chosen, strict=True))
    return total + sum(float(t[chosen[a], chosen[b]]) for (a, b), t in edges.items())


def brute(nodes: list[Any], edges: Edges) -> float:
    """The least sum over every choice."""
    return min(value(nodes, edges, chosen)
               for chosen in itertools.product(*(range(len(t)) for t in nodes)))


#: Pairs of nodes by kind of graph.
SHAPES: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "one": (1, []),
    "apart": (4, []),
    "chain": (5, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    "backwards": (4, [(3, 2), (2, 1), (1, 0)]),
    "residual": (6, [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4), (3, 5), (4, 5)]),
    "branches": (6, [(0, 1), (0, 2), (0, 3), (1, 5), (2, 4), (4, 5), (3, 5)]),
    "two ways": (3, [(0, 1), (1, 0), (1, 2), (2, 1)]),
    "inputs and outputs": (6, [(0, 2), (1, 2), (2, 3), (3, 4), (3, 5)]),
    "disconnected": (6, [(0, 1), (1, 2), (3, 4), (4, 5), (3, 5)]),
    "complete": (5, [(a, b) for a in range(5) for b in range(a + 1, 5)]),
}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A graph of a known kind, or any pairs in any order; tables of floats or of few whole numbers,
    so that many choices tie.
    """
    kind = draw(st.sampled_from([*SHAPES, "any", "any"]))
    if kind == "any":
        size = draw(st.integers(2, 6))
        every = [(a, b) for a in range(size) for b in range(size) if a != b]
        pairs = draw(st.lists(st.sampled_from(every), unique=True, max_size=10))
    else:
        size, pairs = SHAPES[kind]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ties, alike = draw(st.booleans()), draw(st.booleans())
    widths = ([draw(st.integers(1, 3))] * size
              if alike
              else [draw(st.integers(1, 3)) for _ in range(size)])
    pool: dict[tuple[int, ...], list[Any]] = {}

    def table(*shape: int) -> Any:
        """A new table, or the same object as another one: what the solver computes once for equal
        questions.
        """
        made = pool.setdefault(shape, [])
        if not made or not alike or rng.random() < 0.4:
            made.append(rng.integers(0, 3, shape) if ties else rng.random(shape))
        return made[int(rng.integers(len(made)))]

    return [table(w) for w in widths], {(a, b): table(widths[a], widths[b]) for a, b in pairs}


@settings(max_examples=120)
@given(problems())
def test_elimination_finds_the_least_sum(problem: Problem) -> None:
    before = [t.copy() for t in (*problem[0], *problem[1].values())]
    total, chosen = solve(*problem)
    assert total == pytest.approx(brute(*problem), rel=1e-12, abs=1e-12)
    assert value(*problem, chosen) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert all(np.array_equal(a, b)
               for a, b in zip(before, (*problem[0], *problem[1].values()), strict=True))


def test_an_integer_program_agrees() -> None:
    """HiGHS on every kind of graph."""
    pytest.importorskip("scipy")
    from bench.integer_program import integer_program, solve_program

    rng = np.random.default_rng(0)
    for size, pairs in SHAPES.values():
        widths = rng.integers(1, 5, size)
        nodes, edges = ([rng.random(w) for w in widths],
                        {(a, b): rng.random((widths[a], widths[b])) for a, b in pairs})
        chosen = solve_program(integer_program(nodes, edges), 10.0)
        assert chosen is not None and value(nodes, edges, chosen) == pytest.approx(
            solve(nodes, edges)[0], rel=1e-6
        )


@settings(max_examples=25)
@given(problems(), st.integers(1, 12))
def test_minimizing_in_blocks_changes_nothing(problem: Problem, block: int) -> None:
    whole = solve(*problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_elimination, "BLOCK", block)
        assert solve(*problem) == whole


def test_a_graph_without_choices_is_solved() -> None:
    assert solve([], {}) == (0.0, [])
    assert solve([np.array([3.0])], {}) == (3.0, [0])


def test_ties_keep_the_first() -> None:
    nodes = [np.zeros(3), np.zeros(4), np.zeros(2)]
    assert solve(nodes, {(0, 1): np.zeros((3, 4)), (2, 1): np.zeros((2, 4))}) == (0.0, [0, 0, 0])


def test_parallel_edges_in_both_orders_are_added() -> None:
    there, back = (np.array([[0.0, 5.0, 5.0], [5.0, 5.0, 1.0]]),
                   np.array([[9.0, 9.0], [0.0, 9.0], [9.0, 2.0]]))
    total, chosen = solve([np.zeros(2), np.zeros(3)], {(0, 1): there, (1, 0): back})
    assert (total, chosen) == (3.0, [1, 2])


def test_a_long_chain_of_many_configurations() -> None:
    """As long as ResNet-152 and as wide as its spaces; the reference is the textbook's Viterbi."""
    rng = np.random.default_rng(0)
    size, width = 300, 40
    nodes = [rng.random(width) for _ in range(size)]
    edges = {(i, i + 1): rng.random((width, width)) for i in range(size - 1)}
    best = nodes[0]
    for i in range(1, size):
        best = (best[:, None] + edges[i - 1, i]).min(axis=0) + nodes[i]
    total, chosen = solve(nodes, edges)
    assert total == pytest.approx(best.min(), rel=1e-12)
    assert value(nodes, edges, chosen) == pytest.approx(total, rel=1e-12)


def of_network(name: str) -> Eliminations:
    """The papers' count of a built-in network."""
    layers = builtin.network(name).layers
    place = {layer.name: i for i, layer in enumerate(layers)}
    return count_eliminations(len(layers),
                 [(place[name], place[layer.name]) for layer in layers for name in layer.inputs])


@pytest.mark.parametrize(("name", "edges"),
                         [("lenet5", 0), ("alexnet", 0), ("vgg16", 0), ("inception_v3", 35),
                          ("resnet50", 16)])
def test_the_papers_eliminations(name: str, edges: int) -> None:
    """DeePa and OptCNN: K = 2 in all of their networks, and as many edges as branches come
    together.
    """
    found = of_network(name)
    assert (found.edges, found.kept) == (edges, 2)
    assert found.nodes == len(builtin.network(name).layers) - 2


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=25))
def test_series_and_parallel_graphs_fall_to_two_nodes(steps: list[tuple[bool, int]]) -> None:
    """Every layer put on an edge is one node elimination, every edge doubled one edge elimination.
    """
    pairs, size, doubled = [(0, 1)], 2, 0
    for double, at in steps:
        a, b = pairs[at % len(pairs)]
        if double:
            pairs.append((a, b))
            doubled += 1
        else:
            pairs[at % len(pairs)] = (a, size)
            pairs.append((size, b))
            size += 1
    assert count_eliminations(size, pairs) == Eliminations(size - 2, doubled, 2)


def test_nodes_that_the_rules_leave_are_counted() -> None:
    assert count_eliminations(4, []) == Eliminations(0, 0, 4)
    assert count_eliminations(6, [*SHAPES["complete"][1][1:], (0, 5), (5, 1)]) == Eliminations(
        1, 0, 5
    )
    assert count_eliminations(3, [(0, 2), (1, 2)]) == Eliminations(0, 0, 3)
