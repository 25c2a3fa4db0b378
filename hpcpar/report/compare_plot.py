"""The plot of simulated against measured: phases of every run, loss curves, layers, and what was
not foreseen.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.report.compare import BUBBLE, PARTS, PHASES, Row, Split, whole
from hpcpar.report.compare_table import percent, signed
from hpcpar.report.pictures import COLOURS, pyplot, save

_PREDICTED, _MEASURED, _COMMUNICATION, _WAITING = "#9BC3E6", "#0072B2", "#D55E00", "#444444"
_BUBBLE_COLOUR = "#BBBBBB"
#: Of what is no compute.
_HATCHES = {"communication": "////", "waiting": "...."}
_SIDES = ("predicted_s", "measured_s")
#: Runs whose layers are drawn, layers of a run, and deviations: more would not be readable.
_MOST, _LAYERS, _TERMS = 4, 40, 8
_CAUSES = {"compute": "#0072B2", "communication": "#D55E00", "waiting": "#444444",
           "bubble": "#999999", "between": "#CC79A7"}


def _seconds(parts: Split, part: str, side: str) -> float:
    return float(getattr(parts[part], side) or 0.0)


def _colour(phase: str) -> str:
    return _BUBBLE_COLOUR if phase == BUBBLE else COLOURS.get(phase, "#777777")


def _phases(axes: Any, rows: Sequence[Row]) -> None:
    """Per run two stacked bars: predicted, measured; compute plain, exposed communication and
    waiting hatched.
    """
    places, names, top = [], [], 0.0
    for i, row in enumerate(rows):
        for j, side in enumerate(_SIDES):
            at, height = i + 0.4 * (j - 0.5), 0.0
            for part in PARTS:
                for phase, parts in row.phases.items():
                    piece = 1e3 * _seconds(parts, part, side)
                    if piece > 0:
                        axes.bar(at, piece, 0.36, bottom=height, color=_colour(phase),
                                 edgecolor="white", linewidth=0.6,
                                 hatch=_HATCHES.get(part))
                        height += piece
            total = getattr(row.iteration, side)
            # the whole iteration: a mark, as a median is not the sum of means
            if total is not None:
                axes.plot([at - 0.18, at + 0.18], [1e3 * total] * 2, color="black", linewidth=1.8)
            places.append(at)
            names.append("predicted" if j == 0 else "measured")
            top = max(top, height, 1e3 * (total or 0.0), 1e3 * (row.iteration.high_s or 0.0))
        if row.iteration.low_s is not None and row.iteration.high_s is not None:
            low, high = 1e3 * row.iteration.low_s, 1e3 * row.iteration.high_s
            axes.errorbar(i + 0.2, (low + high) / 2, (high - low) / 2, color="black", linewidth=1.0,
                          capsize=4)
    for i, row in enumerate(rows):
        mean = f"\nmean of {row.stages} stages" if row.stages > 1 else ""
        label = f"{row.name}\naccuracy {percent(row.iteration.accuracy)}{mean}"
        axes.annotate(label, (i, 1.02 * top), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.3 * top or 1)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(places, names, rotation=90 if len(rows) > 3 else 0, fontsize=8)
    axes.set_ylabel("one iteration (ms)")
    axes.set_title("Phases: predicted and measured")


def _legend(axes: Any, plt: Any, rows: Sequence[Row]) -> None:
    def drawn(phase: str) -> bool:
        return any(_seconds(row.phases[phase], part, side) > 0 for row in rows
                   if phase in row.phases for part in PARTS for side in _SIDES)

    used = [phase for phase in (*PHASES, BUBBLE) if drawn(phase)]
    entries = [plt.Rectangle((0, 0), 1, 1, color=_colour(p)) for p in used]
    entries += [plt.Rectangle((0, 0), 1, 1, facecolor="#BBBBBB", edgecolor="white", hatch=hatch)
                for hatch in _HATCHES.values()]
    entries += [plt.Line2D([], [], color="black", linewidth=1.8),
                axes.errorbar([], [], [], color="black", linewidth=1.0, capsize=4)]
    axes.legend(entries, [*used, "exposed communication", "waiting for ranks", "whole iteration",
                          "its quartiles"], fontsize=8,
                loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _loss(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        if len(row.loss):
            accuracy = ""
            if row.test_accuracy is not None:
                accuracy = f" (held-out accuracy {percent(row.test_accuracy)})"
            axes.plot(np.arange(1, len(row.loss) + 1), row.loss, linewidth=1.2,
                      label=row.name + accuracy)
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss")
    axes.set_title("Training loss")
    if any(len(row.loss) for row in rows):
        axes.legend(fontsize=8)


def _layers(axes: Any, row: Row) -> None:
    """Per layer two bars, predicted and measured, with communication and waiting on top; quartiles
    at each measured part's end.
    """
    sizes = {name: whole(parts) for name, parts in row.layers.items()}
    largest = sorted(sizes,
                     key=lambda name: -max(sizes[name].measured_s, sizes[name].predicted_s
                                           or 0.0))[:_LAYERS]
    names = [name for name in row.layers if name in largest]
    at, top = np.arange(len(names)), 0.0
    for side, shift, colour, text in ((_SIDES[0], -0.2, _PREDICTED, "predicted"),
                                      (_SIDES[1], 0.2, _MEASURED, "measured")):
        bottom = np.zeros(len(names))
        for part in PARTS:
            values = 1e3 * np.array([_seconds(row.layers[n], part, side) for n in names])
            some = values > 0  # an empty bar would still show its edge
            edge: dict[str, Any] = {}
            if part != "compute":
                edge = {"edgecolor": _COMMUNICATION if part == "communication" else _WAITING,
                        "linewidth": 0.8}
            shown = {"compute": "compute", "communication": "exposed communication",
                     "waiting": "waiting for ranks"}[part]
            face = colour if part != "waiting" else "white"
            if some.any() or part == "compute":
                axes.bar((at + shift)[some], values[some], 0.38, bottom=bottom[some], color=face,
                         hatch=_HATCHES.get(part),
                         label=f"{text}, {shown}", **edge)
            if side == "measured_s":
                _quartiles(axes,
                           at + shift + {"compute": -0.08, "communication": 0.0,
                                         "waiting": 0.08}[part],
                           bottom, [row.layers[n][part] for n in names])
                top = max(top,
                          float(np.max([1e3 * (row.layers[n][part].high_s or 0.0) for n in names]
                                       + bottom, initial=0.0)))
            bottom = bottom + values
        top = max(top, float(np.max(bottom, initial=0.0)))
    axes.set_xticks(at, names, rotation=90 if len(names) > 8 else 0, fontsize=8)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.set_ylabel("one iteration (ms)")
    longest = f", the {_LAYERS} longest" if len(row.layers) > _LAYERS else ""
    axes.set_title(f"Layers{longest}: {row.name}" + (f" ({os.path.basename(row.path)})" if row.path
                                                     else ""), fontsize=10)
    axes.set_ylim(0, 1.28 * top or 1)
    axes.legend(fontsize=7, ncols=3, loc="upper right")


def _quartiles(axes: Any, at: Any, bottom: Any, times: Sequence[Any]) -> None:
    for x, below, t in zip(at, bottom, times, strict=True):
        if t.measured_s > 0 and t.low_s is not None and t.high_s is not None and t.high_s > t.low_s:
            low, high = below + 1e3 * t.low_s, below + 1e3 * t.high_s
            axes.errorbar(x, (low + high) / 2, (high - low) / 2, color="black", linewidth=0.7,
                          capsize=1.5)


def _terms(axes: Any, row: Row) -> None:
    """The largest deviations as bars: to the right what took longer than predicted."""
    axes.set_title("Not foreseen (measured less predicted)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    shown = row.terms[:_TERMS]
    if not shown:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no prediction of steps in this record", ha="center", va="center",
                  fontsize=9, transform=axes.transAxes)
        return
    values = [1e3 * t.excess_s for t in shown]
    axes.barh(range(len(shown)), values, 0.62, color=[_CAUSES[t.cause] for t in shown])
    for i, (value, term) in enumerate(zip(values, shown, strict=True)):
        axes.annotate(f" {signed(term.excess_s)} ({100 * term.share:+.0f}%) ", (max(value, 0.0), i),
                      ha="left", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [textwrap.fill(t.what, 38) for t in shown], fontsize=7)
    axes.axvline(0, color="black", linewidth=0.8)
    span = max(map(abs, values))
    axes.set_xlim(1.08 * min(*values, 0.0), max(*values, 0.0) + 0.75 * span)
    axes.invert_yaxis()
    axes.set_xlabel("ms an iteration", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


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
    width = max(15.0, 9.5 + 1.4 * len(rows))
    figure = plt.figure(figsize=(width, 4.6 + 3.8 * len(shown)), layout="constrained")
    above, *below = figure.subfigures(1 + len(shown), 1, height_ratios=[4.6, *[3.8] * len(shown)],
                                      squeeze=False)[:, 0]
    top, loss = above.subplots(1, 2, width_ratios=(max(1.3, 0.35 * len(rows)), 1))
    _phases(top, rows)
    _legend(top, plt, rows)
    _loss(loss, rows)
    for part, row in zip(below, shown, strict=True):
        layers, terms = part.subplots(1, 2, width_ratios=(1.5, 1))
        _layers(layers, row)
        _terms(terms, row)
    save(plt, figure, path, 110)
