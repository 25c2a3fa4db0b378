"""The search for counter-examples: a few seeded cases, and that it finds what there is to find."""

from __future__ import annotations

import pytest

from bench import never_worse
from bench.never_worse import OPTIONS, Case, counter_example, drawn_cases
from hpcpar.api.plan import PlanResult, plan
from hpcpar.cli.main import main

CASES = [Case("lenet5", "local", 4, 64), Case("lenet5", "abci-v100", 6, 96),
         Case("alexnet", "k80x16", 4, 128)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_drawn_plan_is_faster_than_auto(case: Case) -> None:
    """Sizes of buckets apart."""
    names = [name for name in OPTIONS if name != "bucket"]
    assert counter_example(case, draws=12, seed=0, names=names) is None


def test_a_faster_plan_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(*args: object, **options: object) -> PlanResult:
        return plan("lenet5", 4, 64, "local", "channel")

    monkeypatch.setattr(never_worse, "plan", worse)
    example = counter_example(CASES[0], draws=16, seed=0)
    assert example is not None and example[0] > 1.001
    assert main(example[1].split()[1:]) == 0


def test_cases_follow_from_the_seed() -> None:
    first, again, other = (list(drawn_cases(20, seed, ["lenet5", "unet"], [2, 3]))
                           for seed in (1, 1, 2))
    assert first == again != other
