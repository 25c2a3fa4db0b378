"""The plot of simulated against measured: phases of every run, the loss curves, and the layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.report.compare import PARTS, PHASES, Row, Split
from hpcpar.report.compare_table import percent
from hpcpar.report.pictures import COLOURS, pyplot, save

_PREDICTED, _MEASURED, _EXPOSED = "#9BC3E6", "#0072B2", "#D55E00"
_SIDES = ("predicted_s", "measured_s")
#: Runs whose layers are drawn; more would not be readable.
_MOST = 4


def _seconds(split: Split, part: str, side: str) -> float:
    return float(getattr(split[part], side) or 0.0)


def _phases(axes: Any, rows: Sequence[Row]) -> None:
    """Per run two stacked bars: predicted, measured; compute plain, exposed communication hatched."""
    places, names, top = [], [], 0.0
    for i, row in enumerate(rows):
        for j, side in enumerate(_SIDES):
            at, height = i + 0.4 * (j - 0.5), 0.0
            for part in PARTS:
                for phase, split in row.phases.items():
                    piece = 1e3 * _seconds(split, part, side)
                    if piece > 0:
                        axes.bar(at, piece, 0.36, bottom=height, color=COLOURS.get(phase, "#777777"), edgecolor="white", linewidth=0.6,
                                 hatch="////" if part == "communication" else None)
                        height += piece
            whole = getattr(row.iteration, side)
            if whole is not None:  # the whole iteration: a mark, as steps of different ranks may add up to more or less
                axes.plot([at - 0.18, at + 0.18], [1e3 * whole] * 2, color="black", linewidth=1.8)
            places.append(at)
            names.append("predicted" if j == 0 else "measured")
            top = max(top, height, 1e3 * (whole or 0.0))
    for i, row in enumerate(rows):
        label = f"{row.name}\naccuracy {percent(row.iteration.accuracy)}"
        axes.annotate(label, (i, 1.02 * top), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.22 * top or 1)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(places, names, rotation=90 if len(rows) > 3 else 0, fontsize=8)
    axes.set_ylabel("one iteration (ms)")
    axes.set_title("Phases: predicted and measured")


def _legend(axes: Any, plt: Any, rows: Sequence[Row]) -> None:
    def drawn(phase: str) -> bool:
        return any(_seconds(row.phases[phase], part, side) > 0 for row in rows for part in PARTS for side in _SIDES)

    used = [phase for phase in PHASES if drawn(phase)]
    entries = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[p]) for p in used]
    entries.append(plt.Rectangle((0, 0), 1, 1, facecolor="#BBBBBB", edgecolor="white", hatch="////"))
    entries.append(plt.Line2D([], [], color="black", linewidth=1.8))
    axes.legend(entries, [*used, "exposed communication", "whole iteration"], fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0),
                frameon=False)


def _loss(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        if len(row.loss):
            accuracy = "" if row.test_accuracy is None else f" (held-out accuracy {percent(row.test_accuracy)})"
            axes.plot(np.arange(1, len(row.loss) + 1), row.loss, linewidth=1.2, label=row.name + accuracy)
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss")
    axes.set_title("Training loss")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _layers(axes: Any, row: Row) -> None:
    """Per layer two bars, compute below and exposed communication above."""
    names = list(row.layers)
    at, top = np.arange(len(names)), 0.0
    for j, (side, colour, text) in enumerate((("predicted_s", _PREDICTED, "predicted"), ("measured_s", _MEASURED, "measured"))):
        place = at + 0.4 * (j - 0.5)
        compute, comm = (1e3 * np.array([_seconds(row.layers[n], part, side) for n in names]) for part in PARTS)
        axes.bar(place, compute, 0.38, color=colour, label=f"{text}, compute")
        some = comm > 0  # an empty bar would still show its edge
        axes.bar(place[some], comm[some], 0.38, bottom=compute[some], color=colour, edgecolor=_EXPOSED, hatch="////", linewidth=0.8,
                 label=f"{text}, exposed communication")
        top = max(top, float(np.max(compute + comm, initial=0.0)))
    axes.set_xticks(at, names, rotation=90 if len(names) > 12 else 0, fontsize=8)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.set_ylabel("one iteration (ms)")
    axes.set_title(f"Layers: {row.name} ({os.path.basename(row.path)})" if row.path else f"Layers: {row.name}")
    axes.set_ylim(0, 1.2 * top or 1)
    axes.legend(fontsize=8, ncols=4, loc="upper right")


def plot(rows: Sequence[Row], path: str) -> None:
    """Write the figure.

    Parameters
    ----------
    rows : sequence of Row
        Runs; the layers of the first four are drawn.
    path : str
        A PNG file, or what else matplotlib writes by its suffix.

    Raises
    ------
    InputError
        No matplotlib, an unknown suffix, or the file cannot be written.
    """
    plt = pyplot()
    shown = rows[:_MOST]
    figure = plt.figure(figsize=(max(12, 5 + 1.4 * len(rows) + 4.5), 4.4 + 3.2 * len(shown)), layout="constrained")
    grid = figure.add_gridspec(1 + len(shown), 2, width_ratios=(max(1.3, 0.35 * len(rows)), 1))
    top = figure.add_subplot(grid[0, 0])
    _phases(top, rows)
    _legend(top, plt, rows)
    _loss(figure.add_subplot(grid[0, 1]), rows)
    for i, row in enumerate(shown):
        _layers(figure.add_subplot(grid[1 + i, :]), row)
    save(plt, figure, path, 120)
