"""Plans made to fit: by micro-batches in 1F1B order and by recomputation, whichever is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan.plan import NetworkSpec, PipelineOrder
from hpcpar.report.tables.scaling_table import memory_note
from hpcpar.search import auto, fit
from hpcpar.search.candidates import Candidate, in_order
from hpcpar.search.explain import explain
from hpcpar.search.fit import made_to_fit
from hpcpar.search.memory_advice import advice_on, memory_advice

SPEC = NetworkSpec("lenet5", (1, 28, 28), 10)
NETWORK = SPEC.build()
LOCAL = files.load("local")


def machine(memory_bytes: float) -> Machine:
    return replace(LOCAL, device=replace(LOCAL.device, memory_bytes=int(memory_bytes)))


def data(share: float, **options: Any) -> Candidate:
    """Data parallelism on two ranks that have this share of the memory that it takes."""
    whole = auto.price_named(NETWORK, SPEC, "data", 2, 256, LOCAL, **options).memory_bytes
    return auto.price_named(NETWORK, SPEC, "data", 2, 256, machine(share * whole), **options)


def test_micro_batches_are_doubled_until_the_plan_fits() -> None:
    chosen = data(0.9)
    found = made_to_fit(chosen)
    assert not chosen.fits and found is not None and found.fits
    assert found.iteration_s < 1.1 * chosen.iteration_s
    assert found.plan.microbatches == 2
    assert found.plan.order is PipelineOrder.ONE_FORWARD_ONE_BACKWARD
    by_again = chosen.with_options(recompute=2)
    assert not by_again.fits or by_again.iteration_s >= found.iteration_s


def test_plans_with_fc_passes_get_no_micro_batches() -> None:
    """They exclude each other, so such variations have no memory plan."""
    whole = auto.price_named(NETWORK, SPEC, "owt-c", 2, 256, LOCAL).memory_bytes
    chosen = auto.price_named(NETWORK, SPEC, "owt-c", 2, 256, machine(0.1 * whole))
    assert chosen.plan.fc_passes == 2 and made_to_fit(chosen) is None


def test_micro_batches_are_not_doubled_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch costs steps: a batch of many millions would be planned for long."""
    spec = NetworkSpec("lenet5", (1, 8, 8), 10)
    chosen = auto.price_named(spec.build(), spec, "data", 1, 1 << 24, machine(1e7))
    assert not chosen.fits
    monkeypatch.setattr(fit, "MOST_MICROBATCHES", 8)
    found = made_to_fit(chosen)
    assert found is None or found.plan.microbatches <= 8


def test_much_slower_plans_come_last_even_if_they_fit() -> None:
    fast, slow, slower = (replace(data(2.0), iteration_s=s) for s in (1.0, 1.9, 2.1))
    too_large = replace(data(0.9), iteration_s=1.1)
    unknown = replace(too_large, iteration_s=2.5)
    assert not too_large.fits
    assert in_order([unknown, slower, too_large, slow, fast]) == [
        fast, slow, too_large, slower, unknown]
    assert "fits" not in vars(unknown)


def test_recomputation_is_taken_where_micro_batches_are_fixed() -> None:
    found = made_to_fit(data(0.9, microbatches=1))
    assert found is not None and found.fits
    assert found.plan.microbatches == 1 and found.plan.recompute > 0


def test_fixed_options_stay() -> None:
    found = made_to_fit(data(0.9, recompute=2))
    assert found is not None and found.plan.recompute == 2 and found.plan.microbatches > 1
    assert made_to_fit(data(0.9, microbatches=1, recompute=2)) is None


def test_recomputation_and_micro_batches_combine_where_neither_suffices() -> None:
    """Between what the most micro-batches need, and what they need with recomputation."""
    chosen = auto.price_named(NETWORK, SPEC, "data", 2, 256, LOCAL, microbatches=4, order="1f1b")
    least = min(chosen.with_options(recompute=n).memory_bytes for n in (2, 4, 8))
    assert least < chosen.memory_bytes
    tight = auto.price_named(NETWORK, SPEC, "data", 2, 256, machine(least), microbatches=4)
    found = made_to_fit(tight)
    assert found is not None and found.fits and found.plan.recompute > 0
    assert found.plan.order is PipelineOrder.ONE_FORWARD_ONE_BACKWARD


def test_the_automatic_choice_is_made_to_fit_if_that_is_fastest() -> None:
    least = min(c.memory_bytes for c in auto.best(NETWORK, SPEC, 2, 256, LOCAL, layers=False))
    tight = machine(0.9 * least)
    best, *others = auto.best(NETWORK, SPEC, 2, 256, tight, layers=False)
    assert best.fits and best.plan.microbatches > 1
    assert all(not c.fits or c.iteration_s >= best.iteration_s for c in others)
    advice = advice_on([best, *others])
    assert advice is not None and advice.remedy is best and "--microbatches" in advice.options
    assert "; remedy used: --microbatches" in memory_note(advice, taken=True)


def test_the_advice_names_the_cheapest_way_and_explanations_begin_with_it() -> None:
    chosen = data(0.9)
    advice = memory_advice(chosen)
    assert advice is not None and advice.options == "--microbatches 2 --order 1f1b"
    assert "cheapest remedy: --microbatches 2 --order 1f1b needs" in memory_note(advice)
    assert explain(NETWORK, chosen).to_json()["memory"] == advice.to_json()
    assert memory_advice(data(1.0)) is None


@pytest.mark.parametrize(("share", "said"), [(0.6, "2 ranks are enough"),
                                             (0.001, "use a smaller batch")])
def test_the_needed_number_of_ranks_is_named_if_nothing_else_helps(share: float, said: str) -> None:
    """Weights alone are too much here: neither micro-batches nor recomputation help."""
    spec = NetworkSpec("alexnet", (3, 227, 227), 1000)
    network = spec.build()
    one = auto.price_named(network, spec, "data", 1, 1, LOCAL)
    chosen = auto.price_named(network, spec, "data", 1, 1, machine(share * one.memory_bytes))
    advice = memory_advice(chosen)
    assert advice is not None and advice.remedy is None and said in memory_note(advice)
