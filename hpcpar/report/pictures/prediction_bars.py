"""Pictures of predictions: bars in the style of Gholami et al., Fig 6, 7 and 10, or curves over the
number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.prediction.prediction import Prediction
from hpcpar.report.pictures import finish, panels, pyplot

#: Parts of an iteration and their style, from the bottom of a bar.
PARTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("compute", {"color": "#4c78a8"}),
    (
        "batch-parallel communication",
        {"facecolor": "#f2b179", "hatch": "xxx", "edgecolor": "#a0522d", "linewidth": 0},
    ),
    ("other communication", {"color": "#d95f02"}),
    ("bubble", {"color": "#bbbbbb"}),
)

#: Number of bars in a panel if the slowest would dwarf the others.
BEST = 6
#: Ratio of the slowest to the fastest bar above which the slowest dwarfs the others.
DWARFS = 5.0
#: Curves replace bars for at most this many strategies and at least this many numbers of ranks.
FEW_STRATEGIES, MANY_RANKS = 3, 3


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

    All communication is exposed; gradients' communication is batch-parallel.
    """
    gradient = sum(s.exposed_s for s in p.of_stage(p.longest_stage) if s.is_comm
                   and s.phase == "gradient")
    return p.compute_s, gradient, p.exposed_communication_s - gradient, p.bubble_s


def label(p: Prediction) -> str:
    """The strategy's grid, or its name if it has none."""
    return p.strategy.partition(":")[2] or p.strategy


def speedup(p: Prediction, data: Prediction) -> tuple[float, float]:
    """Speedup of an iteration, and of its exposed communication, over data parallelism."""
    theirs, ours = data.exposed_communication_s, p.exposed_communication_s
    return data.iteration_s / p.iteration_s, theirs / ours if ours else math.inf


def _seconds(p: Prediction) -> tuple[float, ...]:
    """The parts of an epoch if its size is known, else of an iteration."""
    iterations = p.epoch_s / p.iteration_s if p.epoch_s and p.iteration_s else 1.0
    return tuple(part * iterations for part in parts_s(p))


def _visible(predictions: Sequence[Prediction]) -> list[Prediction]:
    """All predictions, or the fastest few if the slowest would dwarf the others."""
    by_time = sorted(predictions, key=lambda p: sum(_seconds(p)))
    if sum(_seconds(by_time[-1])) <= DWARFS * sum(_seconds(by_time[0])):
        return list(predictions)
    best = by_time[:BEST]
    return [p for p in predictions if p in best]


def _panel(axes: Any, ranks: int, predictions: Sequence[Prediction],
           data: Prediction | None) -> None:
    shown = _visible(predictions)
    bottom = [fill_bar(axes, i, 0.7, _seconds(p)) for i, p in enumerate(shown)]
    axes.set_xticks(range(len(shown)), [label(p) for p in shown], rotation=60, ha="right",
                    fontsize=7)
    best = "" if len(shown) == len(predictions) else f", best {len(shown)} of {len(predictions)}"
    axes.set_title(f"P = {ranks}{best}", fontsize=9)
    axes.set_ylabel(_unit(shown), fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(0, 1.18 * max(bottom, default=1.0) or 1.0)
    fastest = min(range(len(shown)), key=lambda i: bottom[i])
    total, comm = speedup(shown[fastest], data) if data is not None else (1.0, 1.0)
    if total > 1.005:
        inner = "" if math.isinf(comm) else f" ({comm:.1f}x)"
        # the text is wider than a bar: place it above the neighbors
        near = bottom[max(0, fastest - 2): fastest + 3]
        axes.annotate(f"{total:.1f}x{inner}", (fastest, bottom[fastest]),
                      (fastest, max(near) + 0.03 * max(bottom)), ha="center", va="bottom",
                      fontsize=8, weight="bold", arrowprops={"arrowstyle": "-", "linewidth": 0.6})


def _unit(predictions: Sequence[Prediction]) -> str:
    epochs = all(p.epoch_s is not None for p in predictions)
    data = f" of {predictions[0].data_set}" if predictions[0].data_set else ""
    return f"seconds per epoch{data}" if epochs else "seconds per iteration"


def _curves(plt: Any, predictions: Sequence[Prediction]) -> Any:
    """Draws time over the number of ranks: a line per strategy, dashed for the exposed part."""
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for strategy in dict.fromkeys(p.strategy for p in predictions):
        ours = sorted((p for p in predictions if p.strategy == strategy), key=lambda p: p.ranks)
        ranks = [p.ranks for p in ours]
        line, = axes.plot(ranks, [sum(_seconds(p)) for p in ours], marker="o", label=strategy)
        exposed = [sum(_seconds(p)[1:]) or math.nan for p in ours]
        if any(e > 0 for e in exposed):
            axes.plot(ranks, exposed, linestyle="--", color=line.get_color(),
                      label=f"{strategy}: not computing")
    ranks = sorted({p.ranks for p in predictions})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_yscale("log")
    axes.set_xlabel("ranks P")
    axes.set_ylabel(_unit(predictions))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _bars(plt: Any, predictions: Sequence[Prediction], data: Mapping[int, Prediction]) -> Any:
    """Draws stacked bars, one panel per number of ranks."""
    ranks = sorted({p.ranks for p in predictions})
    figure, grid = panels(plt, len(ranks), 3.4, 3.1, 0.6)
    for axes, p in zip(grid.flat, ranks, strict=False):
        _panel(axes, p, [x for x in predictions if x.ranks == p], data.get(p))
    used = [part for i, part in enumerate(PARTS) if any(parts_s(p)[i] > 0 for p in predictions)]
    handles = [plt.Rectangle((0, 0), 1, 1, **style) for _, style in used]
    title = "bold: times as fast as data parallelism (its communication alone)" if any(
        axes.texts for axes in figure.axes) else None
    figure.legend(handles, [name for name, _ in used], loc="outside lower center",
                  ncols=len(used), fontsize=8, frameon=False, title=title, title_fontsize=8)
    return figure


def _few(predictions: Sequence[Prediction]) -> bool:
    """True if curves over the number of ranks show more than bars."""
    strategies = {p.strategy for p in predictions}
    return (len(strategies) <= FEW_STRATEGIES
            and len({p.ranks for p in predictions}) >= MANY_RANKS)


def bars(predictions: Sequence[Prediction], data: Mapping[int, Prediction],
         path: str | None = None) -> Any:
    """Draws stacked bars, one panel per number of ranks, or curves if there are few strategies.

    Parameters
    ----------
    data : mapping
        Number of ranks -> data parallelism, the reference of the speedups above the best bar (in
        parentheses: of communication).
    """
    if not predictions:
        raise InputError("nothing to plot: every strategy was skipped; choose fewer sample parts "
                         "or a larger batch")
    plt = pyplot()
    figure = _curves(plt, predictions) if _few(predictions) else _bars(plt, predictions, data)
    first, batches = predictions[0], sorted({p.batch for p in predictions})
    batch = f"{batches[0]}" if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
    figure.suptitle(f"{first.network} on {first.machine}, batch {batch}, overlap {first.overlap}",
                    fontsize=10)
    return finish(plt, figure, path, 150)
