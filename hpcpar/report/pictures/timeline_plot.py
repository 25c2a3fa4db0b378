"""Predicted timelines in stacked panels, in the style of DeePa's Fig 15."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.prediction.prediction import Prediction
from hpcpar.report.pictures import COLORS, finish, pyplot
from hpcpar.report.traces.perfetto import Stream, gaps, stream_of, streams, title

_OTHER = "#777777"
#: Hatching of the pauses of computing, and of the communication that it waits for.
_WAITING: dict[str, Any] = {"facecolor": "none", "edgecolor": "#333333", "hatch": "//////",
                            "linewidth": 0.0, "zorder": 2}
_WAITS = "computing waits"
_HEIGHT = 0.8


def _panel(axes: Any, prediction: Prediction) -> set[str]:
    """Draws one timeline; returns its phases.

    Pauses of computing are hatched, and so is the communication during them.
    """
    rows = streams(prediction)
    pauses = {stream.stage: gaps(prediction, stream.stage) for stream in rows if stream.computes}
    bars: dict[tuple[Stream, str], list[tuple[float, float]]] = defaultdict(list)
    for stream in rows:
        if stream.computes:
            bars[stream, _WAITS] = pauses[stream.stage]
    for step in prediction.steps:
        stream = stream_of(step)
        bars[stream, step.phase].append((step.start_s, step.end_s))
        if not stream.computes:
            bars[stream, _WAITS] += [(max(start, step.start_s), min(end, step.end_s))
                                     for start, end in pauses[stream.stage]]
    low = {stream: len(rows) - 1 - i - _HEIGHT / 2 for i, stream in enumerate(rows)}
    phases: set[str] = set()
    for (stream, phase), spans in bars.items():
        in_ms = [(1e3 * start, 1e3 * (end - start)) for start, end in spans if end > start]
        color = {"facecolors": COLORS.get(phase, _OTHER), "linewidth": 0}
        if in_ms:
            style = _WAITING if phase == _WAITS else color
            axes.broken_barh(in_ms, (low[stream], _HEIGHT), **style)
            phases.add(phase)
    axes.set_yticks(range(len(rows)), list(rows.values())[::-1], fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    total_ms = 1e3 * prediction.total_s
    sent = f"{prediction.communication_bytes / 1e9:.3g} GB sent by a rank"
    axes.set_title(f"{title(prediction)}: {total_ms:.4g} ms per iteration, {sent}", fontsize=9,
                   loc="left")
    axes.axvline(total_ms, color="black", linewidth=1.0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return phases - {_WAITS}


def _legend(figure: Any, plt: Any, phases: set[str]) -> None:
    used = [phase for phase in COLORS if phase in phases] + sorted(phases - set(COLORS))
    entries = [plt.Rectangle((0, 0), 1, 1, color=COLORS.get(phase, _OTHER)) for phase in used]
    entries.append(plt.Rectangle((0, 0), 1, 1, **_WAITING))
    figure.legend(entries, [*used, _WAITS], loc="outside lower center",
                  ncols=len(entries), fontsize=8, frameon=False)


def timelines(predictions: Sequence[Prediction], path: str | None = None) -> Any:
    """Draws one panel per prediction on a shared time axis, from top to bottom; returns the figure.
    """
    if not predictions:
        raise InputError(
            "no timeline to draw: every strategy was skipped; choose a larger batch or fewer ranks")
    plt = pyplot()
    heights = [0.8 + 0.35 * len(streams(p)) for p in predictions]
    figure, grid = plt.subplots(len(predictions), 1, sharex=True, squeeze=False,
                                figsize=(11, sum(heights) + 0.8), layout="constrained",
                                gridspec_kw={"height_ratios": heights})
    phases = set().union(*(_panel(axes, p) for axes, p in zip(grid.flat, predictions, strict=True)))
    grid.flat[-1].set_xlim(0, 1.02e3 * max(p.total_s for p in predictions) or 1)
    grid.flat[-1].set_xlabel("time (ms)", fontsize=9)
    _legend(figure, plt, phases)
    first = predictions[0]
    if all((p.machine, p.batch) == (first.machine, first.batch) for p in predictions):
        figure.suptitle(f"{first.network} on {first.machine}, batch {first.batch}", fontsize=10)
    return finish(plt, figure, path, 130)
