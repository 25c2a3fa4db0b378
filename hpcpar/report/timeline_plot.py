"""Predicted timelines drawn one above the other, in the manner of DeePa's Fig 15: what computes,
what travels, and who waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.errors import InputError
from hpcpar.report.perfetto import Stream, gaps, stream_of, streams, title
from hpcpar.report.pictures import COLOURS, pyplot, save

if TYPE_CHECKING:
    from hpcpar.cost.price_plan import Prediction

_OTHER = "#777777"
#: Hatched: computing stands still, and what it waits for.
_WAITING = {"facecolor": "none", "edgecolor": "#333333", "hatch": "//////", "linewidth": 0.0}
_HEIGHT = 0.8

#: A stretch of time as (start, length) in ms.
Bar = tuple[float, float]


def _bars(prediction: Prediction, stream: Stream) -> dict[str, list[Bar]]:
    """The steps of a stream, by phase."""
    out: dict[str, list[Bar]] = {}
    for step, span in zip(prediction.steps, prediction.timeline.spans, strict=True):
        if stream_of(step, span) == stream and span.end_s > span.start_s:
            bar = (1e3 * span.start_s, 1e3 * (span.end_s - span.start_s))
            out.setdefault(step.phase, []).append(bar)
    return out


def _exposed(prediction: Prediction, stream: Stream) -> list[Bar]:
    """Where a row is hatched: the pauses of computing, and the communication during them."""
    pauses = gaps(prediction, stream.stage)
    if stream.computes:
        return [(1e3 * start, 1e3 * (end - start)) for start, end in pauses]
    out: list[Bar] = []
    for step, span in zip(prediction.steps, prediction.timeline.spans, strict=True):
        if stream_of(step, span) == stream:
            for start, end in pauses:
                first, last = max(start, span.start_s), min(end, span.end_s)
                if last > first:
                    out.append((1e3 * first, 1e3 * (last - first)))
    return out


def _panel(axes: Any, prediction: Prediction) -> set[str]:
    """Draw one timeline; the phases that occur."""
    rows = streams(prediction)
    phases: set[str] = set()
    for i, stream in enumerate(rows):
        low = len(rows) - 1 - i - _HEIGHT / 2
        for phase, bars in _bars(prediction, stream).items():
            colour = COLOURS.get(phase, _OTHER)
            axes.broken_barh(bars, (low, _HEIGHT), facecolors=colour, linewidth=0)
            phases.add(phase)
        waiting = _exposed(prediction, stream)
        if waiting:
            axes.broken_barh(waiting, (low, _HEIGHT), **_WAITING)
    axes.set_yticks(range(len(rows)), list(rows.values())[::-1], fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    total_ms = 1e3 * prediction.timeline.total_s
    sent = f"{prediction.communication_bytes / 1e9:.3g} GB sent by a rank"
    axes.set_title(f"{title(prediction)}: {total_ms:.4g} ms an iteration, {sent}", fontsize=9,
                   loc="left")
    axes.axvline(total_ms, color="black", linewidth=1.0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return phases


def _legend(figure: Any, plt: Any, phases: set[str]) -> None:
    used = [phase for phase in COLOURS if phase in phases] + sorted(phases - set(COLOURS))
    entries = [plt.Rectangle((0, 0), 1, 1, color=COLOURS.get(phase, _OTHER)) for phase in used]
    entries.append(plt.Rectangle((0, 0), 1, 1, **_WAITING))
    figure.legend(entries, [*used, "computing waits"], loc="outside lower center",
                  ncols=len(entries), fontsize=8, frameon=False)


def timelines(predictions: Sequence[Prediction], path: str) -> None:
    """Write one panel per prediction over one time axis (whole or not at all).

    Parameters
    ----------
    predictions : sequence of Prediction
        From top to bottom.
    path : str
        PNG, PDF or SVG, by its ending.

    Raises
    ------
    InputError
        Nothing to draw, no matplotlib, an unknown ending, or the file cannot be written.
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
    grid.flat[-1].set_xlim(0, 1.02e3 * max(p.timeline.total_s for p in predictions) or 1)
    grid.flat[-1].set_xlabel("time (ms)", fontsize=9)
    _legend(figure, plt, phases)
    save(plt, figure, path, 130)
