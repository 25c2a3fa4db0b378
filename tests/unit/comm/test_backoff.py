"""Pauses between polls, and the cores of a job's nodes."""

from __future__ import annotations

from typing import Any

import pytest

from hpcpar.comm import backoff, cores
from hpcpar.machine.model import NodeCores


@pytest.mark.parametrize("yields", [backoff.YIELDS, backoff.YIELDS_SHARED])
def test_a_waiting_rank_yields_for_a_while_and_then_sleeps(
    yields: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(backoff.time, "sleep", slept.append)
    polls = 1
    while not backoff.pause(polls, 0.0, yields):
        polls += 1
    for idle_s in (0.008, 1.0):
        assert backoff.pause(polls, idle_s, yields)
    assert polls == yields and slept == pytest.approx([2e-5, 0.008 / 50, 1e-3])


class Nodes:
    """A world whose ranks tell where they run: boot id, and cores that they may use."""

    boot_id = "here"

    def __init__(self, *ranks: tuple[str, set[int]]) -> None:
        self.comm = self
        self.ranks = [(name, frozenset(allowed)) for name, allowed in ranks]

    def allgather(self, _: Any) -> list[tuple[str, frozenset[int]]]:
        return self.ranks


def test_the_node_with_most_ranks_a_core_counts() -> None:
    world: Any = Nodes(("a", {0, 1}), ("a", {0, 1}), ("b", {0, 1}), ("b", {0, 1}), ("b", {0, 1}))
    assert cores.fullest_node(world, "cpu") == NodeCores(3, 2)
    assert cores.fullest_node(world, "gpu") == NodeCores(0, 0)


def test_bound_ranks_share_nothing() -> None:
    world: Any = Nodes(*(("a", {core}) for core in range(4)))
    node = cores.fullest_node(world, "cpu")
    assert node == NodeCores(4, 4) and not node.shared


def test_one_line_names_ranks_and_cores() -> None:
    assert str(NodeCores(4, 2)) == "4 ranks share 2 cores: times are less certain"
    assert NodeCores(4, 2).shared
    assert not NodeCores(4, 0).shared, "their number is unknown"
