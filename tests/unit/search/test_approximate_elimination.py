"""Approximate elimination: good choices, valid bounds, exact results where it is possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from bench.networks import dense
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.strategies import entry_of
from hpcpar.search import approximate_elimination, auto
from hpcpar.search.approximate_elimination import solve_any
from hpcpar.search.candidates import priced
from hpcpar.search.edge_elimination import largest_table, solve, total
from hpcpar.search.table_search import Search
from tests.unit.search.test_edge_elimination import Problem, brute, problems


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table with more than two nodes is too large."""
    monkeypatch.setattr(approximate_elimination, "EXACT", 1)
    monkeypatch.setattr(approximate_elimination, "FIXED", 9)


@settings(max_examples=120)
@given(problems())
def test_the_optimum_lies_between_bound_and_choice(problem: Problem) -> None:
    nodes, edges = problem
    least = brute(nodes, edges)
    exact, chosen = solve_any(nodes, edges)
    assert exact == pytest.approx(least, rel=1e-12, abs=1e-12) and total(
        nodes, edges, chosen
    ) == pytest.approx(exact, rel=1e-12, abs=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate_elimination, "EXACT", 0)
        patch.setattr(approximate_elimination, "FIXED", 9)
        bound, chosen = solve_any(nodes, edges)
    assert bound <= least + 1e-12 <= total(nodes, edges, chosen) + 2e-12


def complete(size: int, width: int, seed: int) -> Problem:
    """A complete graph whose edges cost where two nodes differ, like tensors that move."""
    rng = np.random.default_rng(seed)
    differ = 1.0 - np.eye(width)
    return (
        [rng.random(width) for _ in range(size)],
        {(a, b): rng.random() * differ * rng.random((width, width))
         for a in range(size)
         for b in range(a + 1, size)},
    )


def test_choices_are_as_good_as_the_optimum_on_most_complete_graphs(tiny: None) -> None:
    """7 nodes of 3 configurations; at most two change at once."""
    ratios = []
    for seed in range(30):
        nodes, edges = complete(7, 3, seed)
        _, chosen = solve_any(nodes, edges)
        ratios.append(total(nodes, edges, chosen) / brute(nodes, edges))
    assert sum(r < 1 + 1e-12 for r in ratios) >= 24 and max(ratios) < 1.3


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_are_not_fixed_can_be_eliminated(seed: int) -> None:
    """In graphs with half of all edges, tables stay below the limit in every round."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(10, 30, 24)]
    edges = {(a, b): np.zeros((sizes[a], sizes[b])) for a in range(24) for b in range(a + 1, 24)
             if rng.random() < 0.5}
    times_fixed = np.zeros(24)
    for _ in range(6):
        fixed = approximate_elimination._nodes_to_fix(sizes, edges, times_fixed)
        times_fixed[fixed] += 1
        left = [1 if node in fixed else n for node, n in enumerate(sizes)]
        assert (fixed
                and largest_table(left, [pair for pair in edges if not set(pair) & set(fixed)])
                <= approximate_elimination.FIXED)
    assert times_fixed.all()


def test_trees_need_no_fixed_node(tiny: None) -> None:
    rng = np.random.default_rng(1)
    nodes = [rng.random(3) for _ in range(9)]
    edges = {(int(rng.integers(i)), i): rng.random((3, 3)) for i in range(1, 9)}
    bound, chosen = solve_any(nodes, edges)
    assert bound == pytest.approx(solve(nodes, edges)[0], rel=1e-12) == total(nodes, edges, chosen)


@pytest.mark.parametrize(
    ("pairs", "most"),
    [([(0, 1), (1, 2), (2, 3)], 3**2), ([(0, 1), (1, 2), (2, 3), (3, 0)], 3**3),
     ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 3**4), ([], 3), ([(0, 1), (1, 0)], 3**2)],
)
def test_the_largest_table(pairs: list[tuple[int, int]], most: int) -> None:
    """A chain, a ring, all with all, apart, and both ways between two."""
    assert largest_table([3] * 4, pairs) == most


@pytest.mark.parametrize(("count", "ranks"), [(8, 4), (24, 2)])
def test_dense_blocks(count: int, ranks: int) -> None:
    """DenseNet's blocks need tables over some 17 configurations of eight layers and more."""
    net, machine = dense((count,)), files.load("p100x4x4")
    spec = NetworkSpec(net.name, net.image_shape, net.classes)
    search = Search(net, spec, ranks, 16 * ranks, machine, overlap="none")
    found = search.best()
    sizes = [len(u.space) for u in search.units]
    assert largest_table(sizes, search.tables.edges) > approximate_elimination.EXACT
    assert found.bound_s <= found.objective_s <= found.bound_s * 1.01 and found.exact == (
        found.objective_s <= found.bound_s * (1 + 1e-9))
    wanted = auto.task(net, spec, ranks, 16 * ranks, machine, overlap="none")
    others = priced(
        wanted, [s for s in auto.strategies_to_try(net, ranks, machine) if not entry_of(s).apart]
    )
    assert others and all(found.objective_s <= c.iteration_s * (1 + 1e-9) for c in others)


def test_dense_blocks_within_memory() -> None:
    net, machine = dense((8,)), files.load("p100x4x4")
    search = Search(net, NetworkSpec(net.name, net.image_shape, net.classes), 4, 64, machine,
                    overlap="none")
    free, small = search.best(1e30), search.smallest()
    assert small.bytes < free.bytes
    limit = (free.bytes + small.bytes) / 2
    found = search.best(limit)
    assert (found.bytes <= limit
            and free.bound_s <= found.bound_s * (1 + 1e-9)
            and found.bound_s <= found.objective_s)
