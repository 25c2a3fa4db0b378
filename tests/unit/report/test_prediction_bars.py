"""Pictures of predictions: bars, the best where the slowest would hide the others, or curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec
from hpcpar.prediction.prediction import Prediction
from hpcpar.report.pictures import prediction_bars
from hpcpar.search import auto

SPEC = NetworkSpec("alexnet", (3, 227, 227), 1000)
NETWORK = SPEC.build()
MACHINE = files.load("cori-knl")


def predictions(strategies: str, *ranks: int) -> list[Prediction]:
    return [auto.price_named(NETWORK, SPEC, name, p, 512, MACHINE, overlap="none").prediction
            for p in ranks for pattern in strategies.split(",") for name in auto.expand(pattern, p)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that would have been written."""
    figures: list[Any] = []
    monkeypatch.setattr(prediction_bars, "finish",
                        lambda plt, figure, path, dpi: figures.append(figure))
    return figures


def legend(figure: Any) -> list[str]:
    texts = [text for box in figure.legends for text in box.get_texts()]
    texts += [text for axes in figure.axes if axes.get_legend()
              for text in axes.get_legend().get_texts()]
    return [text.get_text() for text in texts]


def test_only_the_best_six_are_drawn_if_slower_ones_would_hide_them(drawn: list[Any]) -> None:
    each = predictions("grid:*", 512)
    prediction_bars.bars(each, {}, "bars.png")
    axes = drawn[0].axes[0]
    shown = [text.get_text() for text in axes.get_xticklabels()]
    best = sorted(each, key=lambda p: p.iteration_s)[:6]
    assert sorted(shown) == sorted(prediction_bars.label(p) for p in best)
    assert "best 6 of 10" in axes.get_title()


def test_all_bars_are_drawn_if_they_are_comparable(drawn: list[Any]) -> None:
    prediction_bars.bars(predictions("grid:*", 4), {}, "bars.png")
    assert drawn[0].axes[0].get_title() == "P = 4"
    assert len(drawn[0].axes[0].get_xticklabels()) == 3


def test_the_legend_names_only_drawn_parts(drawn: list[Any]) -> None:
    prediction_bars.bars(predictions("grid:*", 8), {}, "bars.png")
    assert "compute" in legend(drawn[0])
    assert "bubble" not in legend(drawn[0])


def test_few_strategies_on_many_numbers_of_ranks_are_curves(drawn: list[Any]) -> None:
    prediction_bars.bars(predictions("data,filter", 2, 8, 32), {}, "curves.png")
    axes, = drawn[0].axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert {"data", "filter"} <= set(legend(drawn[0]))


def test_the_title_has_network_machine_and_batch(drawn: list[Any], tmp_path: Path) -> None:
    prediction_bars.bars(predictions("grid:*", 4), {}, str(tmp_path / "bars.png"))
    assert drawn[0].get_suptitle() == "alexnet on cori-knl, batch 512, overlap none"
