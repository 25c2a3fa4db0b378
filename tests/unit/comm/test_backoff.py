"""What a rank does between its polls, and on which core."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpar.comm import backoff as patience
from hpcpar.comm import turns
from hpcpar.comm.crowd import cores
from hpcpar.errors import RunError


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    out = list[float]()
    monkeypatch.setattr(patience.time, "sleep", out.append)
    return out


@pytest.mark.parametrize("turns", [None, Mock(mates=[])])
def test_alone_on_a_core_one_polls_long_and_then_sleeps(turns: Any, slept: list[float]) -> None:
    waits = patience.Patience(turns)
    polls = 1
    while not waits.pause(polls, 0.0):
        polls += 1
    for idle_s in (0.008, 1.0):
        assert waits.pause(polls, idle_s)
    assert polls == 1000 and slept == pytest.approx([2e-5, 0.008 / 50, 1e-3])


def test_with_others_on_the_core_one_hands_it_on(slept: list[float]) -> None:
    turns = Mock(mates=[1])
    waits = patience.Patience(turns)
    for polls, idle_s in enumerate((0.0, 0.01, 0.04, 1.0), 1):
        assert waits.pause(polls, idle_s)
    # only if nothing comes for long it sleeps as well
    assert turns.hand_on.call_count == 4 and slept == [1e-3]


@given(st.lists(st.integers(0, 5), min_size=1, unique=True), st.integers(1, 20))
def test_ranks_that_may_run_anywhere_are_spread_evenly(some: list[int], ranks: int) -> None:
    found = cores([frozenset(some)] * ranks)
    counts = [found.count(core) for core in some]
    assert sum(counts) == ranks and max(counts) - min(counts) <= 1


def test_ranks_stay_where_they_may_run() -> None:
    assert cores([frozenset({0}), frozenset({0, 1}), frozenset({0, 1}), frozenset({3})]) == [0, 1, 0, 3]


def test_ranks_meet_where_most_of_a_machine_do() -> None:
    """Of the first of two places everybody has one of their own, as containers; a job's other
    machine is nobody's business.
    """
    places = [[(1, 1), (7, 7)], [(2, 1), (7, 7)], [(3, 1), (8, 8)], [(1, 1), (7, 7)]]
    assert turns.meet(places, [0, 1, 2], 0) == (1, [0, 1])
    assert turns.meet(places, [0, 1, 2], 2) == (1, [2])
    assert turns.meet(places, [0, 3], 3) == (0, [0, 3])


def test_where_ranks_cannot_meet_one_line_says_so(tmp_path: Path) -> None:
    for meet in (turns._folder, turns._open):
        with pytest.raises(RunError, match=r"cannot meet in .*nowhere: No such file or directory; start no more than cores"):
            meet(tmp_path / "nowhere", [0])
