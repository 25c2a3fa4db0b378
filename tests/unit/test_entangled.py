"""Graphs too entangled to be eliminated: the choice is good, the bound is one, and what can be eliminated is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from hpcpar.machine import files
from hpcpar.network.builder import Graph
from hpcpar.network.graph import Network
from hpcpar.network.layers import Concat, Conv2d, GlobalAvgPool, Linear, ReLU, SoftmaxCrossEntropy
from hpcpar.plan.plan import NetworkSpec
from hpcpar.plan.strategies import parse
from hpcpar.search import auto, entangled
from hpcpar.search.candidates import APART, priced
from hpcpar.search.eliminate import largest_table, solve
from hpcpar.search.entangled import solve_any, total
from hpcpar.search.layerwise import Search
from tests.unit.test_eliminate import Problem, brute, problems


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table with more than two nodes is too large."""
    monkeypatch.setattr(entangled, "EXACT", 1)
    monkeypatch.setattr(entangled, "HELD", 9)


@settings(max_examples=120, deadline=None)
@given(problems())
def test_the_optimum_lies_between_bound_and_choice(problem: Problem) -> None:
    nodes, edges = problem
    least = brute(nodes, edges)
    exact, chosen = solve_any(nodes, edges)
    assert exact == pytest.approx(least, rel=1e-12, abs=1e-12) and total(nodes, edges, chosen) == pytest.approx(exact, rel=1e-12, abs=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entangled, "EXACT", 0)
        patch.setattr(entangled, "HELD", 9)
        bound, chosen = solve_any(nodes, edges)
    assert bound <= least + 1e-12 <= total(nodes, edges, chosen) + 2e-12


def complete(size: int, width: int, seed: int) -> Problem:
    """Each node with its favourite, and edges that cost where two differ: as layers whose tensors move."""
    rng = np.random.default_rng(seed)
    differ = 1.0 - np.eye(width)
    return ([rng.random(width) for _ in range(size)],
            {(a, b): rng.random() * differ * rng.random((width, width)) for a in range(size) for b in range(a + 1, size)})


def test_choices_are_as_good_as_the_optimum_on_most_complete_graphs(tiny: None) -> None:
    """7 nodes, each with an edge to every other, of 3 configurations; no more than two change at once."""
    ratios = []
    for seed in range(30):
        nodes, edges = complete(7, 3, seed)
        _, chosen = solve_any(nodes, edges)
        ratios.append(total(nodes, edges, chosen) / brute(nodes, edges))
    assert sum(r < 1 + 1e-12 for r in ratios) >= 24 and max(ratios) < 1.3


def test_trees_need_nothing_held(tiny: None) -> None:
    rng = np.random.default_rng(1)
    nodes = [rng.random(3) for _ in range(9)]
    edges = {(int(rng.integers(i)), i): rng.random((3, 3)) for i in range(1, 9)}
    bound, chosen = solve_any(nodes, edges)
    assert bound == pytest.approx(solve(nodes, edges)[0], rel=1e-12) == total(nodes, edges, chosen)


@pytest.mark.parametrize(("pairs", "most"), [
    ([(0, 1), (1, 2), (2, 3)], 3**2), ([(0, 1), (1, 2), (2, 3), (3, 0)], 3**3), ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], 3**4),
    ([], 3), ([(0, 1), (1, 0)], 3**2),
])
def test_the_largest_table(pairs: list[tuple[int, int]], most: int) -> None:
    """A chain, a ring, all with all, apart, and both ways between two."""
    assert largest_table([3] * 4, pairs) == most


def dense(count: int) -> Network:
    """As DenseNet's blocks: each layer reads all layers before it."""
    net = Graph("dense", (3, 16, 16))
    features = [net.add(Conv2d, "stem", out_channels=16, kernel=(3, 3), padding=(1, 1))]
    for i in range(count):
        net.add(Concat, f"all{i}", after=tuple(features)) if i else None
        net.add(ReLU, f"relu{i}", after=f"all{i}" if i else features[0])
        features.append(net.add(Conv2d, f"conv{i}", out_channels=8, kernel=(3, 3), padding=(1, 1)))
    net.add(Concat, "all", after=tuple(features))
    net.add(GlobalAvgPool, "pool")
    net.add(Linear, "fc", out_features=10)
    net.add(SoftmaxCrossEntropy, "loss")
    return net.build()


@pytest.mark.parametrize(("count", "ranks"), [(8, 4), (24, 2)])
def test_dense_blocks(count: int, ranks: int) -> None:
    """Far too entangled for elimination: some 17 configurations of each of eight layers, and more, at once."""
    net, machine = dense(count), files.load("p100x4x4")
    spec: Any = NetworkSpec("lenet5", net.image_shape, 10)
    search = Search(net, spec, ranks, 16 * ranks, machine, overlap="none")
    found = search.best()
    sizes = [len(u.space) for u in search.units]
    assert largest_table(sizes, search.tables.edges) > entangled.EXACT
    assert found.bound_s <= found.objective_s <= found.bound_s * 1.01 and found.exact == (found.objective_s <= found.bound_s * (1 + 1e-9))
    wanted = auto.task(net, spec, ranks, 16 * ranks, machine, overlap="none")
    others = priced(wanted, [s for s in auto.candidates(net, ranks, machine) if parse(s)[0] not in APART])
    assert all(found.objective_s <= c.iteration_s * (1 + 1e-9) for c in others)


def test_dense_blocks_within_memory() -> None:
    net, machine = dense(8), files.load("p100x4x4")
    search = Search(net, NetworkSpec("lenet5", net.image_shape, 10), 4, 64, machine, overlap="none")
    free, small = search.best(1e30), search.smallest()
    assert small.bytes < free.bytes
    limit = (free.bytes + small.bytes) / 2
    found = search.best(limit)
    assert found.bytes <= limit and free.bound_s <= found.bound_s * (1 + 1e-9) and found.bound_s <= found.objective_s
