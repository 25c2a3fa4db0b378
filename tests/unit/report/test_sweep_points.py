"""Speedup, efficiency, cost and conclusion of a scaling study, by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hpcpar.cost.trust import Trust
from hpcpar.report.pictures.sweep_plots import figures
from hpcpar.report.sweep_points import (
    IterationParts,
    Point,
    base,
    efficiency,
    mean_accuracy,
    speedup,
    to_json,
)
from hpcpar.report.tables.sweep_table import conclusion, rows


def point(ranks: int, batch: int, measured_s: float, predicted_s: float = 1.0,
          **more: Any) -> Point:
    return Point(f"p{ranks}", "data", "data", ranks, batch, 2, 10, "done",
                 predicted=IterationParts(predicted_s, 1, 0, 0),
                 measured=IterationParts(measured_s, 1, 0, 0), **more)


def test_speedup_and_efficiency_by_hand() -> None:
    """Over the fastest on the fewest ranks; in samples per second."""
    slow, fast, many = point(2, 64, 2.0), point(2, 64, 1.6), point(8, 128, 0.8)
    over = base([slow, many, fast], "measured")
    assert over is fast
    assert speedup(many, over, "measured") == pytest.approx(4) and efficiency(
        many, over, "measured"
    ) == pytest.approx(1)
    assert many.node_hours("measured") == pytest.approx(2 * 8 / 3600)
    assert mean_accuracy([slow, point(2, 64, 2.0, 3.0),
                          point(2, 64, 1.0, same_as="p2")]) == pytest.approx(0.5)
    assert base([], "measured") is None and speedup(many, None, "measured") is None


def test_the_conclusion_is_one_sentence_on_the_fastest_case() -> None:
    one, eight = point(2, 64, 2.0), point(8, 64, 1.0, 1.25)
    assert conclusion([one, eight]) == (
        "Fastest, as measured: data on 8 ranks, 1 s per iteration of 64 samples, 2.00 times the "
        "speed of 2 at 50.0% parallel efficiency. Predictions are 62.5% accurate on average.")
    assert conclusion([]) == "Nothing can run."


def test_a_conclusion_on_predictions_names_their_source() -> None:
    trust = Trust("sheet", "data sheet of the T4, not calibrated", (0.8, 1.5))
    planned = replace(point(2, 64, 1.0, 0.0313), measured=None, trust=trust)
    assert conclusion([planned]) == (
        "Fastest, as predicted: data on 2 ranks, about 31 ms per iteration of 64 samples (25 to 47 "
        "ms: data sheet of the T4, not calibrated; hpcpar calibrate on one node narrows it).")
    (row,) = to_json([planned])["points"]
    assert row["predicted"]["iteration_high_s"] == pytest.approx(1.5 * 0.0313)


def test_predicted_speedups_have_their_own_interval() -> None:
    """Weak scaling, so only the number of ranks differs from the base; measured ones have none."""
    trust = Trust("sheet", "a data sheet", (0.5, 2.0))
    one, eight = (replace(point(ranks, 64 * ranks, 1.0, seconds), measured=None, trust=trust)
                  for ranks, seconds in ((1, 1.0), (8, 1.25)))
    (_, row), measured = to_json([one, eight])["points"], to_json([point(8, 64, 1.0)])["points"]
    low, high = row["predicted"]["efficiency_low"], row["predicted"]["efficiency_high"]
    assert row["predicted"]["efficiency"] == pytest.approx(0.8) and low < 0.8 < high < 0.8 * 1.3
    assert row["predicted"]["speedup_low"] == pytest.approx(8 * low)
    assert "6.4 (" in conclusion([one, eight]) and f"({low:.0%} to " in conclusion([one, eight])
    assert rows([one, eight])[1][-2] == f"({low:.0%} - {high:.0%})"
    assert "efficiency_low" not in measured[0]["predicted"]


@pytest.mark.parametrize("slowest_s", [0.056, 0.1, 0.3, 0.9, 40.0])
def test_the_time_axis_has_numbers_over_its_whole_length(slowest_s: float) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    shown = [point(ranks, 64, time_s, time_s, low_s=time_s, high_s=time_s)
             for ranks, time_s in ((1, slowest_s), (2, 0.052))]
    figure = figures(shown, "title", True)["time"]
    figure.draw_without_rendering()
    axis = figure.axes[0].yaxis
    low, high = figure.axes[0].get_ylim()
    at = sorted(y for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
                if tick.label1.get_text() and low <= (y := tick.get_loc()) <= high)
    assert len(at) >= 3
    assert max(b / a for a, b in pairwise([low, *at, high])) < (high / low) ** 0.5
    plt.close("all")
