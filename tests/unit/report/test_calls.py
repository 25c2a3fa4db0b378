"""Every call of a run against its predicted time."""

from __future__ import annotations

import pytest

from hpcpar.api.compare import CompareResult
from hpcpar.errors import InputError
from hpcpar.report.calls import calls_of
from hpcpar.report.compare import compare
from hpcpar.report.pictures.calls_plot import calls_figure
from hpcpar.report.tables.compare_table import show_calls
from hpcpar.schedule.steps import Step
from hpcpar.train.run_record import RunRecord
from tests.unit.played import lenet, play, predicted

SLOW = 4


def run(strategy: str = "grid:2x2", overlap: str = "none") -> RunRecord:
    """Calls take twice their predicted time, and gradients ten times as long in iteration 4."""
    plan = lenet(strategy, 4, overlap=overlap)
    base = predicted(plan)

    def lasts(rank: int, iteration: int, step: Step) -> float:
        late = 10 if step.phase.value == "gradient" and iteration == SLOW else 1
        return 2 * late * base(rank, iteration, step) + 1e-5 * rank * (step.index % 3 == 0)

    return play(plan, lasts, iterations=9).record


def test_calls_have_their_sizes_times_and_outliers() -> None:
    record = run()
    calls, hidden = calls_of(record)
    steps = {s.label: s for s in record.steps if s.kind == "comm"}
    prediction = {s["label"]: s for s in record.prediction["steps"]}
    assert calls and len(calls) + hidden <= len(steps)
    for call in calls:
        index = steps[call.label].index
        assert call.sent_bytes == record.sent_bytes[:, index].max() > 0
        assert call.predicted_s == prediction[call.label]["seconds"]
        assert len(call.seconds) == 9 and call.median_s >= 2 * call.predicted_s - 1e-8
        assert call.median_s <= 2 * call.predicted_s + 4e-5
        assert call.outliers == ([SLOW] if call.seconds[SLOW] > 2 * call.median_s else [])
    slow = [call for call in calls if call.phase == "gradient"]
    assert slow and any(call.outliers == [SLOW] for call in slow)


def test_the_document_the_table_and_the_picture_show_all_calls(
        capsys: pytest.CaptureFixture[str]) -> None:
    record = run()
    calls, _ = calls_of(record)
    result = CompareResult(tuple(compare([record])))
    shown = result.to_json(calls=True)["runs"][0]["calls"]
    assert [row["label"] for row in shown] == [call.label for call in calls]
    assert "calls" not in result.to_json()["runs"][0]
    rows = [row for row in result.rows(calls=True) if row["of"] == "calls"]
    assert [(row["name"], row["measured_s"]) for row in rows] == [
        (call.label, call.median_s) for call in calls]
    assert len(result.rows(calls=True)) == len(result.rows()) + len(calls)
    with pytest.raises(InputError, match="give one record"):
        CompareResult((*result.runs, *result.runs)).plot_calls()
    show_calls("mine", calls, 3, everything=True, wide=True)
    printed = capsys.readouterr().out
    assert all(call.label in printed for call in calls) and "not timed: 3 steps" in printed
    assert f"9 of each of {len(calls)} steps" in printed
    pytest.importorskip("matplotlib")
    axes = calls_figure(calls, "mine").axes[0]
    drawn = sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() in (".", "x"))
    assert drawn == 9 * len(calls)


def test_runs_without_calls_are_refused() -> None:
    with pytest.raises(InputError, match="computing overlaps all of them; run a plan made with"):
        calls_of(run("data", overlap="full"))
    plan = lenet("data", 1)
    with pytest.raises(InputError, match="its ranks send no messages"):
        calls_of(play(plan, predicted(plan)).record)
