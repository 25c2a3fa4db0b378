"""The first line of results: one plain sentence."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hpcpar.cost.ratios import Ratio
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec, make_plan
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.report.rows import Row, Times
from hpcpar.report.tables import answer, seconds
from hpcpar.search.scaling import Scale

#: The interval, and where it comes from.
WHY = ("(80 to 200 ms: one rate fitted to ResNet-50 and VGG-16, not calibrated; hpcpar calibrate "
       "on one node narrows it)")


@pytest.fixture(scope="module")
def priced() -> Prediction:
    """LeNet-5, with numbers of a long training run."""
    spec = NetworkSpec("lenet5", (1, 28, 28), 10)
    machine = files.load("abci-v100")
    found = price(spec.build(), make_plan(spec, "data", 32, 512), machine, samples=1_280_000)
    return replace(found, iteration_s=0.1, epoch_s=250.0, samples=1_280_000,
                   trust=replace(found.trust, ratios=(0.8, 2.0)))


@pytest.mark.parametrize(("value", "text"), [
    (19 * 3600 + 40 * 60, "19 h 40 min"), (200, "3 min 20 s"), (0.0767, "76.7 ms"),
    (4.25, "4.25 s"), (59.99, "59.99 s"), (59.999, "1 min"), (119.7, "2 min"),
    (3599.4, "59 min 59 s"), (3599.7, "1 h"), (7170, "2 h"), (353_000, "98 h 3 min"),
    (-200, "-3 min 20 s"), (0.0, "0"), (3e-9, "3 ns"), (None, "-"),
])
def test_times_are_rounded_as_people_say_them(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_a_plan_names_machine_strategy_time_and_cost(priced: Prediction) -> None:
    assert answer.of_plan(priced) == (
        f"Use 32 GPUs of abci-v100, data parallel: about 100 ms per iteration of 512 {WHY}, "
        "an epoch of 1.28 M images in 4 min 10 s, 2.22 GPU-hours")
    assert answer.of_plan(priced, 90, choice=False) == (
        f"32 GPUs of abci-v100, data parallel: about 100 ms per iteration of 512 {WHY}, 90 "
        "epochs of 1.28 M images in 6 h 15 min, 200 GPU-hours")
    single = replace(priced, ranks=1, processor="core", epoch_s=None, training=False)
    assert answer.of_plan(single) == (
        f"Use 1 core of abci-v100, data parallel: about 100 ms per forward pass of 512 {WHY}")


def test_strategies_in_words() -> None:
    told = {name: answer.words(name) for name in ("layerwise", "owt-b", "grid:2x4/outer", "mine:1")}
    assert told == {"layerwise": "layer by layer", "owt-b": "one weird trick, scheme b",
                    "grid:2x4/outer": "1.5D grid (grid:2x4/outer)", "mine:1": "mine:1"}
    assert all(answer.words(name) != name for name in STRATEGIES)


def test_plans_that_do_not_fit_are_not_advised(priced: Prediction) -> None:
    small = replace(priced, memory_limit_bytes=1000)
    assert not small.fits
    told = answer.of_plan(small)
    assert told.startswith("No plan tried fits in memory: 32 GPUs of abci-v100, data p")
    assert told.endswith(" per rank, but 1 kB is available") and "Use" not in told
    assert answer.of_plan(small, choice=False).startswith("Does not fit in memory: 32 GPUs")


def test_a_choice_of_ranks_states_the_whole_training(priced: Prediction) -> None:
    prediction = replace(priced, epoch_s=786.7, strategy="layerwise")
    candidate: Any = SimpleNamespace(prediction=prediction)
    told = answer.of_scaling(Scale(candidate, 32, 512, Ratio(0.823, 0.7, 0.97), 0.0, 0.0), 90)
    assert told == ("Use 32 GPUs, layer by layer: 90 epochs of 1.28 M images in 19 h 40 min, 629 "
                    "GPU-hours, 82.3% (70% to 97%) parallel efficiency; about 100 ms per iteration "
                    f"of 512 {WHY}")
    assert "try more ranks" in answer.of_scaling(None, 90)


def test_a_comparison_states_the_accuracy() -> None:
    def row(predicted_s: float, measured_s: float, file: str, calibrated: bool = False) -> Any:
        interval_s = (0.7 * predicted_s, 1.5 * predicted_s) if calibrated else None
        return Row(SimpleNamespace(path=file), "lenet5", "data", 2,
                   Times(measured_s, predicted_s), 0, interval_s)

    rows = [row(709e-6, 700e-6, "a.h5"), row(0.5, 1.0, "b.h5")]
    assert answer.of_comparison(rows[:1], 0.987) == (
        "Predicted 709 us per iteration, measured 700 us: 98.7% accurate")
    assert answer.of_comparison(rows, 0.743) == (
        "Predictions of 2 runs are 74.3% accurate on average; the worst, b.h5, is 50.0% accurate")
    sure = [row(0.7, 0.72, "a.h5", True), row(0.5, 1.0, "b.h5", True)]
    assert answer.of_comparison(sure[:1], 0.97) == (
        "Predicted 700 ms (490 ms to 1.05 s) per iteration, measured 720 ms: 97.2% accurate, "
        "inside the 90% interval")
    assert answer.of_comparison(sure, 0.7).endswith("; 1 of 2 lie inside their 90% intervals")
    assert [r.inside for r in (*rows, *sure)] == [None, None, True, False]


def test_a_run_ends_with_its_result() -> None:
    times = {"measured_iteration_s": 0.71e-3, "predicted_iteration_s": 0.7e-3}
    trained = {"steps": 30, "loss": 0.04, "test_accuracy": 0.983, "test_loss": 0.1} | times
    assert answer.of_run(trained) == (
        "Trained to step 30: loss 0.04, 98.3% accurate on held-out images, 710 us per iteration, "
        "predicted 700 us")
    assert "held-out loss 0.1," in answer.of_run(trained | {"test_accuracy": None})
    seen = {"samples": 1797, "images_per_s": 1234.56, "measured_pass_s": 0.002,
            "predicted_pass_s": 0.001, "test_accuracy": None, "test_loss": None}
    assert answer.of_run(seen) == (
        "Saw 1,797 images: 1234.6 images/s, 2 ms per pass, predicted 1 ms")


def test_verdicts() -> None:
    assert answer.of_verification(True, 1.2e-15, 1e-9, 3) == (
        "The plan trains as one rank does: the worst difference in 3 steps is 1.2e-15 "
        "(tolerance 1.0e-09)")
    assert "does not train as one rank" in answer.of_verification(False, 1.0, 1e-9, 1)
    ok, warning, problem = ("ok", "MPI"), ("warning", "memory"), ("problem", "launcher")
    assert answer.of_diagnosis([ok, warning, problem]) == "Not ready to run: fix launcher"
    assert answer.of_diagnosis([ok, warning]) == "Ready to run, with 1 warning: memory"
    assert answer.of_diagnosis([ok, ok]) == "Ready to run: 2 checks passed"


def test_marks_are_explained_where_they_occur() -> None:
    assert answer.legend(["data", "layerwise"]) == []
    assert answer.legend(["data"], "the choice") == ["*: the choice"]
    (line,) = answer.legend(["df:2x2/outer"])
    assert line.startswith("/outer: ")
