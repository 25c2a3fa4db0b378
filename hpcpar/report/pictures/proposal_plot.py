"""The picture of a proposal: time of an iteration and parallel efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcpar.report.pictures import pyplot
from hpcpar.report.pictures.sweep_plots import draw_efficiency, draw_ranks_axis, draw_time
from hpcpar.report.sweep_points import Point

_BLUE, _BAND = "#0072B2", {"color": "#0072B2", "alpha": 0.15, "linewidth": 0}


def scaling_figure(series: Mapping[str, Sequence[Point]], processors: str) -> Any:
    """Draws the time of the first series and the efficiency of the last one.

    Parameters
    ----------
    series : mapping
        Points with predictions, by ``strong`` and ``weak``.
    processors : str
        Label of the axis of ranks.
    """
    plt, (first, *_), (*_, last) = pyplot(), series, series
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
    known = [(p.ranks, p.trust.interval_s(p.predicted.iteration_s)) for p in series[first]
             if p.trust and p.predicted]
    left.fill_between([ranks for ranks, _ in known], [1e3 * low for _, (low, _) in known],
                      [1e3 * high for _, (_, high) in known], **_BAND)
    draw_time(left, series[first], first == "weak")
    draw_efficiency(right, series[last])
    for axes, kind, what in ((left, first, "time"), (right, last, "efficiency")):
        draw_ranks_axis(axes, series[kind])
        axes.set_xlabel(processors)
        axes.set_title(f"{kind.capitalize()} scaling: {what}", fontsize=10)
    keys = {"predicted": plt.Line2D([], [], color=_BLUE),
            "90% interval": plt.Rectangle((0, 0), 1, 1, **_BAND),
            "ideal": plt.Line2D([], [], color="black", linestyle="--", linewidth=1)}
    if any(p.measured for points in series.values() for p in points):
        keys["measured, 10th to 90th percentile"] = left.errorbar(
            [], [], yerr=[], fmt="o", color=_BLUE, markeredgecolor="white", capsize=2.5)
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=4, fontsize=8,
                  frameon=False)
    return figure
