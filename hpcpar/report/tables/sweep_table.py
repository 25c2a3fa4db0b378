"""The table of a scaling study, for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from hpcpar.report.sweep_points import (
    Point,
    base,
    efficiency,
    mean_accuracy,
    predicted_efficiency,
    predicted_speedup,
    speedup,
)
from hpcpar.report.tables import (
    in_percent,
    percent,
    seconds,
    show,
    show_line,
    trusted,
    with_ends,
)

COLUMNS = ("P", "strategy", "plan", "batch", "iteration: predicted", "measured", "epoch: predicted",
           "epoch: measured", "accuracy", "speedup", "efficiency", "90% interval",
           "node-hours")
#: Columns that need the size of an epoch.
EPOCHS = ("epoch: predicted", "epoch: measured", "node-hours")
#: Number of text columns at the left.
LEFT = 3
#: Columns that a narrow table leaves out, in this order.
_DROPPED = ("90% interval", "node-hours", "epoch: predicted", "epoch: measured", "batch", "speedup",
            "plan")


def _ratio(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _interval(p: Point, over: Point | None, side: str) -> str:
    """The 90% interval of a predicted efficiency."""
    sure = predicted_efficiency(p, over) if side == "predicted" else None
    return "-" if sure is None or p is over else f"{sure.low:.0%} - {sure.high:.0%}"


#: Parallel efficiency above which a note questions the measurement.
MOST_EFFICIENT = 1.1


def columns(points: Sequence[Point]) -> tuple[str, ...]:
    """The headings of `rows`."""
    return tuple(name for name in COLUMNS if _epochs(points) or name not in EPOCHS)


def _epochs(points: Sequence[Point]) -> bool:
    """True if the size of an epoch is known."""
    return any(p.batches is not None for p in points)


def rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """One row per point; predicted speedup, efficiency and node-hours are in parentheses."""
    table, epochs = [], _epochs(points)
    for p in points:
        if p.predicted is None:
            continue
        side = "predicted" if p.measured is None else "measured"
        over = base(points, side)
        derived = [_ratio(speedup(p, over, side), "{:.2f}"),
                   _ratio(efficiency(p, over, side), "{:.1%}"), _interval(p, over, side),
                   *[_ratio(p.node_hours(side), "{:.3g}")] * epochs]
        if side == "predicted":
            derived = [f"({text})" if text != "-" else text for text in derived]
        chosen = "" if p.chosen == p.strategy else p.chosen
        about = "~" if p.simulated and p.measured else ""
        measured_s = p.measured.iteration_s if p.measured else None
        table.append((str(p.ranks), p.strategy, chosen, str(p.batch),
                      seconds(p.predicted.iteration_s), about + seconds(measured_s),
                      *[seconds(p.epoch_s("predicted")),
                        about + seconds(p.epoch_s("measured"))] * epochs,
                      percent(p.accuracy), *derived))
    return table


def conclusion(points: Sequence[Point]) -> str:
    """The study's result in a sentence: the fastest case, its efficiency, the accuracy."""
    points = [p for p in points if not p.simulated]
    side = "measured" if any(p.measured for p in points) else "predicted"
    timed = [(p.batch / parts.iteration_s, i) for i, p in enumerate(points)
             if (parts := p.side(side)) is not None]
    if not timed:
        return "Nothing can run."
    best = points[max(timed)[1]]
    parts, over = best.side(side), base(points, side)
    assert parts is not None
    plan = "" if best.chosen == best.strategy else f" ({best.chosen})"
    ranks = f"{best.ranks} rank{'s' if best.ranks > 1 else ''}"
    takes = f"per iteration of {best.batch} samples"
    time = (trusted(parts.iteration_s, takes, best.trust) if side == "predicted" and best.trust
            else f"{seconds(parts.iteration_s)} {takes}")
    text = f"Fastest, as {side}: {best.strategy}{plan} on {ranks}, {time}"
    if over is not None and over.ranks < best.ranks:
        gain, share = f"{speedup(best, over, side):.2f}", percent(efficiency(best, over, side))
        sure, sure_share = predicted_speedup(best, over), predicted_efficiency(best, over)
        if side == "predicted" and sure and sure_share:
            gain, share = with_ends(sure), in_percent(sure_share)
        text += f", {gain} times the speed of {over.ranks} at {share} parallel efficiency"
    mean = mean_accuracy(points)
    return f"{text}." + (
        f" Predictions are {percent(mean)} accurate on average." if mean is not None else "")


def notes(points: Sequence[Point]) -> list[str]:
    """Notes under the table: mean accuracy, the base of speedups, and cases that did not run."""
    out = []
    mean = mean_accuracy(points)
    if mean is not None:
        runs = sum(p.accuracy is not None and not p.same_as for p in points)
        out.append(f"mean accuracy over {runs} run{'s' if runs > 1 else ''}: {percent(mean)}; a "
                   "measured time is the median of a run's iterations")
    over = base(points, "measured") or base(points, "predicted")
    if over is not None:
        out.append(f"speedup and efficiency are relative to {over.case}; "
                   + "node-hours are per epoch; " * _epochs(points) +
                   "values in parentheses are predicted")
    for p in points:
        gain = efficiency(p, over, "measured") if p.measured and not p.simulated else None
        if over is not None and gain is not None and gain > MOST_EFFICIENT:
            out.append(f"efficiency of {p.case} is {gain:.0%}, which is rare: memory or other load "
                       f"may have slowed {over.case}; measure it again")
    if any(p.simulated for p in points):
        out.append("~: simulated rank by rank, not measured")
    out += [f"{p.case} runs once with {p.same_as}: their plans are equal"
            for p in points if p.same_as]
    out += [f"{p.case} cannot run: {p.reason}" for p in points if p.state == "skipped"]
    out += [f"{p.case} failed: {p.reason}" for p in points if p.state == "failed" and not p.same_as]
    waiting = [p.case for p in points if p.state in ("planned", "submitted", "running")
               and not p.same_as]
    return out + ([f"not finished: {', '.join(waiting)}"] if waiting else [])


def show_points(title: str, points: Sequence[Point], wide: bool = False) -> None:
    """Prints the conclusion, the table and its notes."""
    table = rows(points)
    if not table:
        show_line(f"{title}: nothing can run")
    else:
        show_line(conclusion(points))
        names = columns(points)
        show(title, names, table, left=LEFT, drop=[n for n in _DROPPED if n in names], wide=wide)
    for line in notes(points):
        show_line(line)
