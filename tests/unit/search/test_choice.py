"""The answer among plans that are about equal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcpar.api.plan import plan
from hpcpar.api.predict import predict
from hpcpar.search.choice import rivals, simplest, simplicity, times_as_fast


def test_data_parallelism_is_the_answer_where_a_grid_gains_nothing() -> None:
    found = plan(network="resnet50", ranks=64, batch=2048, machine="dgx-a100")
    assert found.best.strategy == "data"
    fastest = min(found.candidates, key=lambda c: c.iteration_s)
    assert fastest.strategy != "data"
    assert "; about equal to " in found.answer and found.answer.count("times as fast") == 1
    alternatives = found.to_json()["alternatives"]
    assert all(a["ratio_low"] < a["ratio"] < a["ratio_high"] for a in alternatives[:7])


def test_a_faster_plan_is_the_answer_and_says_how_sure_it_is() -> None:
    found = plan(network="alexnet", ranks=64, batch=512, machine="abci-v100")
    assert found.best.strategy != "data"
    (data,) = (c for c in found.candidates if c.strategy == "data")
    gain = times_as_fast(found.best, data)
    assert gain.low > 1
    ends = f"{gain.value:.3g} ({gain.low:.3g} to {gain.high:.3g})"
    assert f"; {ends} times as fast as data parallel" in found.answer


def test_the_simplest_of_equals_has_fewer_ranks_then_the_simpler_strategy() -> None:
    few = predict(network="resnet50", ranks=[8, 16], batch=8, strategy="auto,data,layerwise",
                  machine="dgx-a100").candidates
    keys = sorted(few, key=simplicity)
    assert [c.task.ranks for c in keys] == sorted(c.task.ranks for c in few)
    assert keys[0].strategy == "data"


def test_a_plan_that_does_not_fit_is_no_alternative() -> None:
    found = plan(network="alexnet", ranks=64, batch=512, machine="abci-v100")
    big = replace(found.best, upper_bound_bytes=1 << 60)
    big.__dict__["fits"] = False
    assert simplest([big, *found.candidates[1:3]], found.candidates[1]) is not big
    assert rivals([big], found.best) == []


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_the_fewest_ranks_that_are_about_as_fast_are_the_choice(kind: str) -> None:
    """Little work on many ranks: twice the ranks are hardly faster."""
    size = {"batch": 64} if kind == "strong" else {"batch_per_rank": 32}
    found = predict(network="lenet5", ranks=[1, 2, 4, 8, 16, 32, 64], machine="dgx-a100", **size)
    fastest = min(found.candidates, key=lambda c: c.iteration_s / c.task.batch)
    assert times_as_fast(found.best, fastest).as_good or found.best is fastest
    fewer = [c for c in found.candidates if c.task.ranks < found.best.task.ranks]
    assert not any(times_as_fast(c, fastest).as_good for c in fewer)
    assert found.ratios[found.candidates.index(found.best)] is None
