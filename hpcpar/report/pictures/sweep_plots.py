"""The pictures of a scaling study: lines are predictions, points are measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcpar.report.pictures import panels, pyplot, save
from hpcpar.report.pictures.prediction_bars import PARTS, fill_bar
from hpcpar.report.sweep_points import IterationParts, Point, base, efficiency

#: Colors (Okabe and Ito) and markers of strategies, in order.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Picture -> heading.
PICTURES = {"time": "Time of an iteration", "efficiency": "Parallel efficiency",
            "parts": "Computing and exposed communication", "node-hours": "Cost of an epoch"}
#: Formats of each picture.
SUFFIXES = (".png", ".svg")
_WIDTH, _HEIGHT, DPI = 7.2, 4.6, 150
#: Horizontal distance between strategies' points, as a fraction of the width, so that error bars do
#: not overlap.
_ASIDE = 0.024


def _styles(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Color and marker of every strategy."""
    return {strategy: {"color": _COLORS[i % len(_COLORS)], "marker": _MARKERS[i % len(_MARKERS)]}
            for i, strategy in enumerate(dict.fromkeys(p.strategy for p in points))}


def _curves(axes: Any, points: Sequence[Point], value: Callable[[Point, str], float | None],
            inverse: bool = False) -> None:
    """Draws a line of predictions and points of measurements for each strategy.

    `inverse` values are inversely proportional to time.
    """
    styles = _styles(points)
    low, high = _range(points)
    for i, (strategy, style) in enumerate(styles.items()):
        ours = sorted((p for p in points if p.strategy == strategy), key=lambda p: p.ranks)
        line = [(p.ranks, v) for p in ours if (v := value(p, "predicted")) is not None]
        axes.plot([x for x, _ in line], [y for _, y in line], color=style["color"], linewidth=1.6)
        aside = (high / low) ** (_ASIDE * (i - (len(styles) - 1) / 2))
        for p in ours:
            v = value(p, "measured")
            if v is not None:
                face, edge = ("white", style["color"]) if p.simulated else (style["color"], "white")
                axes.errorbar(aside * p.ranks, v, yerr=_spread(p, v, inverse), **style,
                              markersize=6, markerfacecolor=face, markeredgecolor=edge,
                              markeredgewidth=0.6 + p.simulated, capsize=2.5, elinewidth=1)


def _spread(p: Point, value: float, inverse: bool) -> list[list[float]]:
    """Lengths of the error bar below and above a measured value."""
    assert p.measured is not None
    fast, slow = p.low_s / p.measured.iteration_s, p.high_s / p.measured.iteration_s
    low, high = (value / slow, value / fast) if inverse else (value * fast, value * slow)
    return [[max(0.0, value - low)], [max(0.0, high - value)]]


def _range(points: Sequence[Point]) -> tuple[float, float]:
    """The limits of the axis of ranks."""
    ranks = [p.ranks for p in points]
    return min(ranks) / 1.25, max(ranks) * 1.25


def draw_ranks_axis(axes: Any, points: Sequence[Point]) -> None:
    ranks = sorted({p.ranks for p in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(*_range(points))
    axes.set_xlabel("ranks P")
    axes.grid(alpha=0.3)


def _legend(plt: Any, axes: Any, points: Sequence[Point]) -> None:
    """Explains colors, markers, lines and points."""
    gray = "#777777"
    keys = {strategy: plt.Line2D([], [], **style, linewidth=1.6, markersize=6)
            for strategy, style in _styles(points).items()}
    keys["line: predicted"] = plt.Line2D([], [], color=gray, linewidth=1.6)
    if any(p.simulated for p in points):
        keys["hollow point: simulated"] = plt.Line2D([], [], color=gray, marker="o", markersize=6,
                                                     markerfacecolor="white", linestyle="")
    if any(p.measured for p in points):
        keys["point: measured; bar: 10th\nto 90th percentile of iterations"] = axes.errorbar(
            [], [], yerr=[], fmt="o", color=gray, markersize=6, capsize=2.5, elinewidth=1)
    ideal = [line for line in axes.lines if line.get_linestyle() == "--"]
    if ideal:
        keys["ideal"] = ideal[0]
    axes.legend(keys.values(), keys.keys(), fontsize=8, frameon=False, loc="upper left",
                bbox_to_anchor=(1.0, 1.0))


def draw_time(axes: Any, points: Sequence[Point], weak: bool) -> None:
    def ms(p: Point, side: str) -> float | None:
        parts = p.side(side)
        return None if parts is None else 1e3 * parts.iteration_s

    _curves(axes, points, ms)
    over = base(points, "measured") or base(points, "predicted")
    if over is not None:
        side = "measured" if over.measured else "predicted"
        first = ms(over, side) or 0.0
        ranks = sorted({p.ranks for p in points})
        axes.plot(ranks, [first * (1 if weak else over.ranks / r) for r in ranks], color="black",
                  linestyle="--", linewidth=1, zorder=0)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 10 * low:  # decades would leave the axis without numbers
        axes.yaxis.set_major_locator(pyplot().MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.yaxis.set_minor_locator(pyplot().NullLocator())
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axes.yaxis.set_minor_formatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "25" else "")
    axes.set_ylabel("one iteration (ms)")


def draw_efficiency(axes: Any, points: Sequence[Point]) -> None:
    over = {side: base(points, side) for side in ("predicted", "measured")}

    def percent(p: Point, side: str) -> float | None:
        value = efficiency(p, over[side], side)
        return None if value is None else 100 * value

    _curves(axes, points, percent, inverse=True)
    axes.axhline(100, color="black", linestyle="--", linewidth=1, zorder=0)
    # points must be inside the picture; error bars need not be
    highest = max((v for p in points for side in over if (v := percent(p, side)) is not None),
                  default=0.0)
    axes.set_ylim(0, 1.1 * max(100.0, highest))
    axes.set_ylabel("parallel efficiency (%)")


def _node_hours(axes: Any, points: Sequence[Point]) -> None:
    _curves(axes, points, lambda p, side: p.node_hours(side))
    axes.set_ylim(0, None)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4), useMathText=True)
    axes.set_ylabel("node-hours per epoch")


def _parts_s(parts: IterationParts) -> tuple[float, ...]:
    """The parts of an iteration, in the order of `PARTS`."""
    return parts.compute_s, parts.gradient_s, parts.other_s, parts.bubble_s


def _bars(axes: Any, points: Sequence[Point]) -> float:
    """Draws the strategies on one number of ranks; returns the height of the tallest bar.

    Pale bars are predictions, solid bars measurements.
    """
    top = 0.0
    for i, p in enumerate(points):
        for shift, side in ((-0.21, "predicted"), (0.21, "measured")):
            parts = p.side(side)
            if parts is None:
                continue
            values = [1e3 * part_s for part_s in _parts_s(parts)]
            top = max(top, fill_bar(axes, i + shift, 0.38, values, pale=side == "predicted"))
    axes.set_xticks(
        range(len(points)),
        [p.strategy if p.chosen == p.strategy else f"{p.strategy}\n({p.chosen})" for p in points],
        rotation=30 if len(points) > 3 else 0, ha="right" if len(points) > 3 else "center",
        fontsize=8,
    )
    axes.set_xlim(-0.6, len(points) - 0.4)
    axes.set_title(f"P = {points[0].ranks}", fontsize=10)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return top


def _bars_figure(plt: Any, points: Sequence[Point]) -> Any:
    sizes = sorted({p.ranks for p in points})
    most = max(sum(p.ranks == ranks for p in points) for ranks in sizes)
    width = max(_WIDTH / min(4, len(sizes)), 0.9 + 0.75 * most)
    figure, grid = panels(plt, len(sizes), width, 3.2, 1, sharey="row")
    groups = ([p for p in points if p.ranks == ranks] for ranks in sizes)
    for row in grid:
        tops = [_bars(axes, group) for axes, group in zip(row, groups, strict=False)]
        row[0].set_ylim(0, 1.08 * max(tops) or 1)
        row[0].set_ylabel("one iteration (ms)")
    drawn = [_parts_s(side) for p in points for side in (p.predicted, p.measured) if side]
    keys = [(plt.Rectangle((0, 0), 1, 1, **style), name)
            for i, (name, style) in enumerate(PARTS) if any(parts[i] > 0 for parts in drawn)]
    if any(p.measured for p in points):
        keys += [(plt.Rectangle((0, 0), 1, 1, facecolor="#888888", alpha=0.45), "pale: predicted"),
                 (plt.Rectangle((0, 0), 1, 1, facecolor="#888888"), "full: measured")]
    figure.legend(*zip(*keys, strict=True), loc="outside lower center", ncols=3, fontsize=8,
                  frameon=False)
    return figure


def figures(points: Sequence[Point], title: str, weak: bool) -> dict[str, Any]:
    """Draws the figures of `PICTURES`; at least one point must have a prediction.

    Raises
    ------
    InputError
        No matplotlib.
    """
    plt = pyplot()
    known = [p for p in points if p.predicted is not None]
    draws: dict[str, Callable[[Any], None]] = {
        "time": lambda axes: draw_time(axes, known, weak),
        "efficiency": lambda axes: draw_efficiency(axes, known),
    }
    if any(p.batches is not None for p in known):
        draws["node-hours"] = lambda axes: _node_hours(axes, known)
    out = {"parts": _bars_figure(plt, known)}
    out["parts"].suptitle(f"{PICTURES['parts']}: {title}", fontsize=10)
    for name, draw in draws.items():
        out[name], axes = plt.subplots(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        draw(axes)
        draw_ranks_axis(axes, known)
        _legend(plt, axes, known)
        axes.set_title(f"{PICTURES[name]}: {title}", fontsize=10)
    return out


def pictures(points: Sequence[Point], stem: str, title: str, weak: bool) -> list[tuple[str, str]]:
    """Draws all pictures; returns their names without suffix, and their headings.

    Parameters
    ----------
    stem : str
        Prefix of the file names (a folder and a separator).

    Raises
    ------
    InputError
        No matplotlib, or a file cannot be written.
    """
    drawn = figures(points, title, weak)
    for name, figure in drawn.items():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once for all formats
        for suffix in SUFFIXES:
            save(pyplot(), figure, f"{stem}{name}{suffix}", DPI)
    return [(name, heading) for name, heading in PICTURES.items() if name in drawn]
