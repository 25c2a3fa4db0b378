"""Bar charts of predictions in the style of Gholami et al., Fig 6, 7 and 10."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcpar.cost.price_plan import Prediction
from hpcpar.errors import InputError
from hpcpar.report.pictures import finish, panels, pyplot

#: Parts of an iteration from the bottom of a bar, and their style.
PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("compute", {"color": "#4c78a8"}),
    (
        "batch-parallel communication",
        {"facecolor": "#f2b179", "hatch": "xxx", "edgecolor": "#a0522d", "linewidth": 0},
    ),
    ("other communication", {"color": "#d95f02"}),
    ("bubble", {"color": "#bbbbbb"}),
)


def fill_bar(axes: Any, at: float, width: float, values: Sequence[float],
             pale: bool = False) -> float:
    """Draws a bar of stacked `PARTS`; returns its height."""
    bottom = 0.0
    for (_, style), value in zip(PARTS, values, strict=True):
        if value > 0:  # an empty part would still show its hatch
            axes.bar(at, value, width, bottom=bottom, alpha=0.45 if pale else None, **style)
            bottom += value
    return bottom


def parts_s(p: Prediction) -> tuple[float, float, float, float]:
    """The parts of an iteration (s), in the order of `PARTS`.

    Communication is the exposed one; that of gradients is batch-parallel.
    """
    gradient = sum(s.exposed_s for s in p.of_stage(p.longest_stage) if s.is_comm
                   and s.phase == "gradient")
    return p.compute_s, gradient, p.exposed_communication_s - gradient, p.bubble_s


def label(p: Prediction) -> str:
    """The strategy's grid; its name where it has none."""
    return p.strategy.partition(":")[2] or p.strategy


def speedup(p: Prediction, data: Prediction) -> tuple[float, float]:
    """Speedup of an iteration, and of its exposed communication, over data parallelism."""
    theirs, ours = data.exposed_communication_s, p.exposed_communication_s
    return data.iteration_s / p.iteration_s, theirs / ours if ours else math.inf


def _panel(axes: Any, ranks: int, predictions: Sequence[Prediction],
           data: Prediction | None) -> None:
    epochs = all(p.epoch_s is not None for p in predictions)
    rows = []
    for p in predictions:
        iterations = p.epoch_s / p.iteration_s if epochs and p.epoch_s and p.iteration_s else 1.0
        rows.append([part * iterations for part in parts_s(p)])
    bottom = [fill_bar(axes, i, 0.7, row) for i, row in enumerate(rows)]
    axes.set_xticks(range(len(rows)), [label(p) for p in predictions], rotation=60, ha="right",
                    fontsize=7)
    axes.set_title(f"P = {ranks}", fontsize=9)
    axes.set_ylabel("seconds per epoch" if epochs else "seconds per iteration", fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(0, 1.18 * max(bottom, default=1.0) or 1.0)
    fastest = min(range(len(rows)), key=lambda i: bottom[i])
    if data is not None:
        total, comm = speedup(predictions[fastest], data)
        inner = "" if math.isinf(comm) else f" ({comm:.1f}x)"
        # the text is wider than a bar: keep clear of the neighbours
        near = bottom[max(0, fastest - 2): fastest + 3]
        axes.annotate(f"{total:.1f}x{inner}", (fastest, bottom[fastest]),
                      (fastest, max(near) + 0.03 * max(bottom)), ha="center", va="bottom",
                      fontsize=8, weight="bold", arrowprops={"arrowstyle": "-", "linewidth": 0.6})


def bars(predictions: Sequence[Prediction], data: Mapping[int, Prediction],
         path: str | None = None) -> Any:
    """Draws stacked bars, one panel per number of ranks; returns the figure.

    Parameters
    ----------
    data : mapping
        Data parallelism by number of ranks: the reference for the speedups printed over the best
        bar (in parentheses: of communication).
    path : str, optional
        File that is written; its suffix chooses PNG, PDF or SVG.

    Raises
    ------
    InputError
        matplotlib is missing, or the file cannot be written.
    """
    if not predictions:
        raise InputError("nothing to plot: every strategy was skipped; choose fewer sample parts "
                         "or a larger batch")
    plt = pyplot()
    ranks = sorted({p.ranks for p in predictions})
    figure, grid = panels(plt, len(ranks), 3.4, 3.1, 0.6)
    for axes, p in zip(grid.flat, ranks, strict=False):
        _panel(axes, p, [x for x in predictions if x.ranks == p], data.get(p))
    first = predictions[0]
    handles = [plt.Rectangle((0, 0), 1, 1, **style) for _, style in PARTS]
    figure.legend(handles, [name for name, _ in PARTS], loc="outside lower center",
                  ncols=len(PARTS), fontsize=8, frameon=False)
    figure.suptitle(
        f"{first.network}, batch {first.batch}, {first.machine}, overlap {first.overlap}",
        fontsize=10)
    return finish(plt, figure, path, 150)
