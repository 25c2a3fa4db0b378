"""A strategy is one entry: its grammar, and everything that reads it, for one of a user's too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import hpcpar
from hpcpar.errors import InputError
from hpcpar.network.builtin import network
from hpcpar.plan.limits import limit
from hpcpar.plan.strategies import configurations, parse
from hpcpar.plan.strategy import (
    STRATEGIES,
    Configs,
    Strategy,
    StrategyRequest,
    assign,
    grid_sizes,
    several,
)
from hpcpar.report.tables import answer
from hpcpar.search import auto
from hpcpar.search.candidates import price_strategy, priced
from tests import outside
from tests.limits import LIMIT_S

LENET = network("lenet5")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "strategies.md"


@pytest.fixture
def halves() -> Iterator[None]:
    with outside.registered():
        yield


def test_the_reference_has_a_row_for_each_entry() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for entry in STRATEGIES.values():
        assert f"| `{entry.form}` | {entry.help} | {entry.words} |" in rows


@pytest.mark.parametrize(("form", "written", "grid"), [
    ("a", "a", ()), ("a:AxB", "a:2x4", (2, 4)), ("a[:AxB]", "a", ()), ("a[:AxB]", "a:8x1", (8, 1)),
    ("a-b:P1xP2[+P1xP2]", "a-b:2x4+8x1", (2, 4, 8, 1)), ("a:AxBxC", "a:2x2x2", (2, 2, 2)),
    ("a:N", "a:8", (8,)),
])
def test_forms_give_the_numbers_of_a_grid(form: str, written: str, grid: tuple[int, ...]) -> None:
    assert Strategy(form, "", "").grid_in(written) == grid


@pytest.mark.parametrize("form", ["", "A", "a:", "a:x", "a:AxB+CxD", "a:axb", "auto", "a b", "a/b"])
def test_impossible_forms_are_refused(form: str) -> None:
    with pytest.raises(InputError, match="write its form as in"):
        Strategy(form, "", "")


@pytest.mark.parametrize("written", ["a", "a:2", "a:0x8", "a:2x4x1", "a:2x4+2x4", "a:2x4/outer"])
def test_other_numbers_are_refused(written: str) -> None:
    with pytest.raises(InputError, match=r"'a' needs a grid of whole numbers, as in 'a:2x4'$"):
        Strategy("a:AxB", "", "").grid_in(written)


def test_every_grid_has_all_ranks() -> None:
    assert grid_sizes(4, 3) == [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    with outside.registered():
        @Strategy("cubes:AxBxC", "cubes", "cubes")
        def cubes(request: StrategyRequest) -> Configs:
            return assign(request.layers, request.config(n=request.ranks))

        assert configurations(LENET, "cubes:2x2x2", 8)["conv1"].n == 8
        assert auto.expand("cubes:*", 2) == ["cubes:1x1x2", "cubes:1x2x1", "cubes:2x1x1"]
        with pytest.raises(InputError, match="is for 4 ranks, not 2; use one of cubes:1x1x2, cu"):
            configurations(LENET, "cubes:2x2x1", 2)


def test_names_are_taken_once() -> None:
    with pytest.raises(InputError, match=r"'data' is already defined in "
                       r"hpcpar\.plan\.builtin_strategies"):
        Strategy("data", "mine", "mine")(lambda request: {})
    assert STRATEGIES["data"].words == "data parallel"


def test_the_help_of_the_command_has_an_outside_strategy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from tests.outside import register\n\nregister()\n")
    helped = subprocess.run(
        [sys.executable, "-m", "hpcpar", "plan", "--layers", str(tmp_path / "mine.py"),
         "--help-all"],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}).stdout
    assert "halves:AxB = the first half of the layers by samples" in " ".join(helped.split())


def test_an_outside_strategy_works_like_a_builtin_one(halves: None, tmp_path: Path) -> None:
    assert parse("halves:2x3/outer") == ("halves", (2, 3))
    assert limit(LENET, "halves:2x2", 64) == 64
    assert answer.words("halves:2x3") == "samples, then channels (halves:2x3)"
    with pytest.raises(InputError, match="did you mean 'halves'"):
        parse("halve:2x3")
    with pytest.raises(InputError, match="is for 6 ranks, not 4; use one of halves:1x4, halves:2"):
        hpcpar.plan("lenet5", 4, 64, strategy="halves:2x3")
    chosen = hpcpar.plan("lenet5", 6, 96, strategy="halves:2x3")
    assert chosen.answer.startswith("6 cores of local, samples, then channels (halves:2x3): ")
    path = str(tmp_path / "plan.json")
    chosen.save(path)
    assert str(hpcpar.load_plan(path).configs["fc1"]) == "{n=3, c=2}"


def test_auto_tries_an_outside_strategy_on_request(halves: None) -> None:
    tried = {c.strategy for c in hpcpar.plan("lenet5", 4, 64).candidates}
    assert "halves:2x2" in tried
    found = hpcpar.plan("lenet5", 4, 64, strategy="layerwise")
    assert "halves:2x2" in {c.strategy for c in found.candidates}
    everywhere = hpcpar.plan("lenet5", 8, 64, "abci-v100").candidates
    assert "halves:4x2/outer" in {c.strategy for c in everywhere}


def test_an_outside_strategy_has_its_price_in_a_family(halves: None) -> None:
    candidates = hpcpar.plan("lenet5", 4, 64).candidates
    wanted = candidates[0].task
    names = ["data", "halves:2x2", "grid:2x2"]
    for family, single in zip(priced(wanted, names), map(partial(price_strategy, wanted), names),
                              strict=True):
        assert family.exact().iteration_s == pytest.approx(single.iteration_s, rel=0.01)


def test_a_strategy_on_some_ranks_must_say_so(halves: None) -> None:
    def first_rank(request: StrategyRequest) -> Configs:
        one, all_ranks = request.config(), request.config(n=request.ranks)
        return assign(request.layers, all_ranks) | assign(request.layers[:4], one)

    Strategy("some", "some", "some", grids=several)(first_rank)
    with pytest.raises(InputError, match="puts layer 'input' on 1 of 4 ranks; register the strat"):
        configurations(LENET, "some", 4)
    Strategy("some", "some", "some", grids=several, staged=True)(first_rank)
    assert "some" in {c.strategy for c in hpcpar.plan("lenet5", 4, 64).candidates}


def test_a_saved_plan_needs_no_entry(halves: None, tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    hpcpar.plan("lenet5", 4, 64, strategy="halves:2x2").save(path)
    del STRATEGIES["halves"]
    assert hpcpar.predict(plan=path).answer.startswith("4 cores of local, halves:2x2: ")
