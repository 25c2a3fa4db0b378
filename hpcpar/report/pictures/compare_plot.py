"""The plot of predicted against measured: phases, loss curves, layers and deviations."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.report.pictures import COLORS, finish, pyplot
from hpcpar.report.rows import BUBBLE, PARTS, Row, Split, Times, whole
from hpcpar.report.tables import percent
from hpcpar.report.tables.compare_table import signed

#: Side of a comparison -> its field in `Times`, and the color of layers.
_SIDES = {"predicted": ("predicted_s", "#9BC3E6"), "measured": ("measured_s", "#0072B2")}
_PHASES = COLORS | {BUBBLE: "#BBBBBB"}
#: Parts in words.
_NAMES = {"compute": "compute", "communication": "exposed communication",
          "waiting": "waiting for ranks"}
_HATCHES = {"communication": "////", "waiting": "...."}
#: Styles that distinguish a layer's other parts from compute.
_EDGES: dict[str, dict[str, Any]] = {
    "communication": {"edgecolor": "#D55E00", "linewidth": 0.8},
    "waiting": {"edgecolor": "#444444", "linewidth": 0.8, "color": "white"},
}
#: Limits for readability: runs whose layers are drawn, layers of a run, and deviations.
_RUNS, _LAYERS, _TERMS = 4, 40, 8
_CAUSES = {"compute": "#0072B2", "communication": "#D55E00", "waiting": "#444444",
           "bubble": "#999999", "between": "#CC79A7"}


def _ms(times: Times, side: str) -> float:
    return 1e3 * float(getattr(times, _SIDES[side][0]))


def _quartiles(axes: Any, x: float, times: Times, below: float = 0.0, **style: Any) -> float:
    """Draws the quartiles of a measured time as an error bar; returns its upper end."""
    if times.low_s is None or times.high_s is None or times.high_s <= times.low_s:
        return 0.0
    low, high = below + 1e3 * times.low_s, below + 1e3 * times.high_s
    axes.errorbar(x, (low + high) / 2, (high - low) / 2, color="black", **style)
    return high


def _phases(axes: Any, rows: Sequence[Row]) -> None:
    """Draws predicted and measured bars per run; communication and waiting are hatched."""
    places, top = [], 0.0
    for i, row in enumerate(rows):
        for x, side in ((i - 0.2, "predicted"), (i + 0.2, "measured")):
            height, total = 0.0, _ms(row.iteration, side)
            for part in PARTS:
                for phase, parts in row.phases.items():
                    piece = _ms(parts[part], side)
                    if piece > 0:
                        axes.bar(x, piece, 0.36, bottom=height, color=_PHASES[phase],
                                 edgecolor="white", linewidth=0.6, hatch=_HATCHES.get(part))
                        height += piece
            # a mark for the whole iteration, since a median is not the sum of means
            axes.plot([x - 0.18, x + 0.18], [total, total], color="black", linewidth=1.8)
            places.append(x)
            top = max(top, height, total)
        top = max(top, _quartiles(axes, i + 0.2, row.iteration, linewidth=1.0, capsize=4))
    for i, row in enumerate(rows):
        mean = f"\nmean of {row.stages} stages" if row.stages > 1 else ""
        label = f"{row.name}\naccuracy {percent(row.iteration.accuracy)}{mean}"
        axes.annotate(label, (i, 1.02 * top), ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 1.3 * top or 1)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(places, [*_SIDES] * len(rows), rotation=90 if len(rows) > 3 else 0, fontsize=8)
    axes.set_ylabel("one iteration (ms)")
    axes.set_title("Phases: predicted and measured")


def _legend(axes: Any, plt: Any, rows: Sequence[Row]) -> None:
    used = {phase for row in rows for phase, parts in row.phases.items()
            if whole(parts).measured_s > 0 or whole(parts).predicted_s > 0}
    entries = {phase: plt.Rectangle((0, 0), 1, 1, color=color)
               for phase, color in _PHASES.items() if phase in used}
    entries |= {_NAMES[part]: plt.Rectangle((0, 0), 1, 1, facecolor="#BBBBBB", edgecolor="white",
                                            hatch=hatch)
                for part, hatch in _HATCHES.items() if _occurs(rows, part)}
    entries["whole iteration"] = plt.Line2D([], [], color="black", linewidth=1.8)
    entries["its quartiles"] = axes.errorbar([], [], [], color="black", linewidth=1.0, capsize=4)
    axes.legend(entries.values(), entries.keys(), fontsize=8, loc="upper left",
                bbox_to_anchor=(1.0, 1.0), frameon=False)


def _occurs(rows: Sequence[Row], part: str) -> bool:
    return any(split[part].measured_s > 0 or split[part].predicted_s > 0
               for row in rows for split in row.phases.values())


def _title(rows: Sequence[Row]) -> str:
    """Network, machine and batch, if all runs share them."""
    facts = [{row.network for row in rows},
             {f" on {row.record.machine['name']}" for row in rows if row.record.machine},
             {f", batch {row.record.plan['batch']}" for row in rows}]
    return "".join(fact.pop() for fact in facts if len(fact) == 1)


def _loss(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        name, loss = row.name, row.record.loss
        if row.test_accuracy is not None:
            name += f" (held-out accuracy {percent(row.test_accuracy)})"
        axes.plot(np.arange(1, len(loss) + 1), loss, linewidth=1.2, label=name)
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss")
    axes.set_title("Training loss")
    if rows:
        axes.legend(fontsize=8, frameon=False)


def _longest(layers: dict[str, Split]) -> list[str]:
    """The names of the longest layers, in schedule order."""
    def longest_s(name: str) -> float:
        times = whole(layers[name])
        return max(times.measured_s, times.predicted_s)

    chosen = sorted(layers, key=longest_s, reverse=True)[:_LAYERS]
    return [name for name in layers if name in chosen]


def _layers(axes: Any, row: Row) -> None:
    """Draws predicted and measured bars per layer, with quartiles at each measured part's end."""
    names, top = _longest(row.layers), 0.0
    at = np.arange(len(names))
    for shift, (side, (_, color)) in zip((-0.2, 0.2), _SIDES.items(), strict=True):
        bottom: NDArray[np.float64] = np.zeros(len(names))
        for part, aside in zip(PARTS, (-0.08, 0.0, 0.08), strict=True):
            times = [row.layers[name][part] for name in names]
            values = np.array([_ms(t, side) for t in times])
            some = values > 0  # an empty bar would still show its edge
            if some.any() or part == "compute":
                style = {"color": color, "hatch": _HATCHES.get(part)} | _EDGES.get(part, {})
                axes.bar((at + shift)[some], values[some], 0.38, bottom=bottom[some],
                         label=f"{side}, {_NAMES[part]}", **style)
            if side == "measured":
                ends = [_quartiles(axes, x, t, below, linewidth=0.7, capsize=1.5)
                        for x, t, below in zip(at + shift + aside, times, bottom, strict=True)
                        if t.measured_s > 0]
                top = max([top, *ends])
            bottom = bottom + values
        top = max([top, *bottom])
    axes.set_xticks(at, names, rotation=90 if len(names) > 8 else 0, fontsize=8)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.set_ylabel("one iteration (ms)")
    longest = f", the {_LAYERS} longest" if len(row.layers) > _LAYERS else ""
    file = f" ({row.file})" if row.file else ""
    axes.set_title(f"Layers{longest}: {row.name}{file}", fontsize=10)
    axes.set_ylim(0, 1.28 * top or 1)
    axes.legend(fontsize=7, ncols=3, loc="upper right")


def _terms(axes: Any, row: Row) -> None:
    """Draws the largest deviations as bars; terms slower than predicted point to the right."""
    axes.set_title("Deviations (measured less predicted)", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    shown = row.terms[:_TERMS]
    values = [1e3 * t.excess_s for t in shown]
    axes.barh(range(len(shown)), values, 0.62, color=[_CAUSES[t.cause] for t in shown])
    for i, (value, term) in enumerate(zip(values, shown, strict=True)):
        axes.annotate(f" {signed(term.excess_s)} ({term.share:+.0%}) ", (max(value, 0.0), i),
                      ha="left", va="center", fontsize=7)
    axes.set_yticks(range(len(shown)), [textwrap.fill(t.what, 38) for t in shown], fontsize=7)
    axes.axvline(0, color="black", linewidth=0.8)
    least, most = min([0.0, *values]), max([0.0, *values])
    axes.set_xlim(1.08 * least, most + 0.75 * max(most, -least) or 1.0)
    axes.invert_yaxis()
    axes.set_xlabel("ms per iteration", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)


def plot(rows: Sequence[Row], path: str | None = None) -> Any:
    """Draws and returns the figure, with the layers of the first four runs; the suffix of `path`
    selects the format.
    """
    plt = pyplot()
    shown = rows[:_RUNS]
    width = max(15.0, 9.5 + 1.4 * len(rows))
    figure = plt.figure(figsize=(width, 4.6 + 3.8 * len(shown)), layout="constrained")
    above, *below = figure.subfigures(1 + len(shown), 1, height_ratios=[4.6, *[3.8] * len(shown)],
                                      squeeze=False)[:, 0]
    top, loss = above.subplots(1, 2, width_ratios=(max(1.3, 0.35 * len(rows)), 1))
    above.suptitle(_title(rows), fontsize=11)
    _phases(top, rows)
    _legend(top, plt, rows)
    _loss(loss, rows)
    for part, row in zip(below, shown, strict=True):
        layers, terms = part.subplots(1, 2, width_ratios=(1.5, 1))
        _layers(layers, row)
        _terms(terms, row)
    return finish(plt, figure, path, 110)
