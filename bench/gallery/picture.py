"""The picture: predicted against measured time of an iteration, a color for each device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.gallery.prediction import Result
from bench.gallery.scaling import Pair
from hpcpar.report.pictures import pyplot, save

#: Colors that differ in hue or clearly in lightness, in turn with the shapes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7B3294",
           "#8C510A", "#B2182B", "#4D9221", "#878787", "#1B1B9E", "#C51B7D", "#35978F", "#A6761D")
SHAPES = "os^Dv"
#: Bounds of the lines beside the diagonal, and their dashes.
BOUNDS = {"±20%": (1.2, (0, (4, 2))), "factor of 2": (2.0, (0, (1, 2)))}


def draw(results: list[Result], path: str) -> None:
    """Draws the counted rows on a white ground, which dark pages show as a card."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7.9, 5.6), layout="constrained")
    seconds = [s for r in results for s in (r.predicted_s, r.row.iteration_s)]
    ends = 1e3 * min(seconds) / 1.3, 1e3 * max(seconds) * 1.3
    _lines(axes, ends)
    _points(axes, results)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
             xlabel="measured time of an iteration (ms)",
             ylabel="predicted time of an iteration (ms)",
             title=f"{len(results)} published training runs, predicted from data sheets")
    for axis in axes.xaxis, axes.yaxis:
        axis.set_major_formatter("{x:g}")
    axes.grid(which="major", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9, frameon=False,
                title="filled: one device, in the fit\nhollow: several devices", title_fontsize=9)
    save(plt, figure, path, 150)


def draw_curves(found: list[list[Pair]], path: str) -> None:
    """Draws measured and predicted efficiency over the number of devices, a panel a series."""
    plt = pyplot()
    figure, panels = plt.subplots(2, 5, figsize=(11.5, 5.2), sharey=True, layout="constrained")
    for axes, pairs in zip(panels.flat, found, strict=False):
        row = pairs[0].many.row
        sizes = [1, *(int(pair.many.row.devices) for pair in pairs)]
        axes.plot(sizes, [1, *(pair.measured for pair in pairs)], "o-", color="#000000",
                  markersize=4, label="measured")
        axes.plot(sizes, [1, *(pair.predicted for pair in pairs)], "s--", color="#D55E00",
                  markersize=4, label="predicted")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(f"{row.device}\n{row.network}, batch {row.batch:g}, {row.precision}\n"
                       f"{row.sync.split(',')[0].split(' (')[0]}", fontsize=8)
        axes.grid(color="#DDDDDD", linewidth=0.6)
    panels[0, 0].legend(fontsize=8, frameon=False, loc="lower left")
    figure.supxlabel("devices")
    figure.supylabel("parallel efficiency")
    save(plt, figure, path, 150)


def _lines(axes: Any, ends: tuple[float, float]) -> None:
    axes.plot(ends, ends, color="#444444", linewidth=1.0, label="predicted = measured")
    for label, (factor, dashes) in BOUNDS.items():
        for times in factor, 1 / factor:
            axes.plot(ends, [times * end for end in ends], color="#444444", linewidth=1.0,
                      linestyle=dashes, label=label if times > 1 else None)


def _points(axes: Any, results: list[Result]) -> None:
    """Devices of many rows first, so that others lie on top."""
    for i, (device, count) in enumerate(Counter(r.row.device for r in results).most_common()):
        own = [r for r in results if r.row.device == device]
        color, shape = COLORS[i % len(COLORS)], SHAPES[i % len(SHAPES)]
        for several in False, True:
            some = [r for r in own if (r.row.devices != "1") is several]
            axes.scatter([1e3 * r.row.iteration_s for r in some],
                         [1e3 * r.predicted_s for r in some], s=20, marker=shape, linewidth=0.8,
                         facecolor="none" if several else color, edgecolor=color)
        axes.scatter([], [], s=28, marker=shape, color=color, label=f"{device} ({count})")
