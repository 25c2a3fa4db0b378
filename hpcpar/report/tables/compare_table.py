"""Predicted against measured: tables for people, and rows of plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcpar.report.calls import OUTLIER, Calls
from hpcpar.report.compare import mean_accuracy
from hpcpar.report.rows import Row, Split, Times, whole
from hpcpar.report.tables import amount, percent, say, seconds, show, show_line
from hpcpar.report.tables.answer import of_comparison, of_pixels, plural
from hpcpar.train.run_record import SIMULATED, RunRecord

#: Terms and layers shown, except with --all.
_TERMS, _LAYERS = 10, 16
#: Most rows of a table of calls, except with --all.
_CALLS = 20


def quartiles(times: Times) -> str:
    """The quartiles of the iterations, as a range."""
    if times.low_s is None or times.high_s is None:
        return "-"
    low, high = seconds(times.low_s), seconds(times.high_s)
    number, *unit = low.split()
    return f"{number if unit == high.split()[1:] and len(unit) == 1 else low} - {high}"


def csv_rows(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    """One row of plain data per time: its run, its subject, and the predicted and measured time."""
    for row in rows:
        run = {name: getattr(row, name) for name in ("file", "network", "strategy", "ranks")}
        whole = {"iteration": row.iteration} | ({"epoch": row.epoch} if row.epoch else {})
        for of, times in whole.items():
            yield run | {"of": of, "name": "", "part": "", **times.to_json()}
        steps = {step.name: step.parts for step in row.steps}
        for of, splits in (("phase", row.phases), ("layer", row.layers), ("step", steps)):
            for name, parts in splits.items():
                for part, times in parts.items():
                    yield run | {"of": of, "name": name, "part": part, **times.to_json()}


def signed(value: float) -> str:
    """A time difference with its sign."""
    return seconds(value) if value < 0 else f"+{seconds(value)}"


def _show_runs(rows: Sequence[Row], wide: bool) -> None:
    """One line per run."""
    several = len({row.network for row in rows}) > 1
    title = "Predicted and measured time of an iteration"
    columns = ("run", *["network"] * several, "strategy", "ranks", "batch", "predicted", "measured",
               "quartiles", "accuracy")
    lines = []
    for row in rows:
        t = row.iteration
        lines.append((row.file, *[row.network] * several, row.strategy, row.ranks,
                      row.record.plan["batch"], seconds(t.predicted_s), seconds(t.measured_s),
                      quartiles(t), percent(t.accuracy)))
    if len(rows) > 1:
        lines.append(("mean", *[""] * (len(columns) - 2), percent(mean_accuracy(rows))))
    show(title if several else f"{title}, {rows[0].network}", columns, lines, left=2 + several,
         drop=("batch", "quartiles", "ranks"), wide=wide)


def _show_splits(title: str, of: str, splits: Mapping[str, Split], wide: bool) -> None:
    """One line per part of a phase, layer or step that takes time."""
    lines = []
    for name, parts in splits.items():
        shown = [(part, t) for part, t in parts.items() if t.measured_s or t.predicted_s]
        for i, (part, t) in enumerate(shown):
            lines.append((name if i == 0 else "", part, seconds(t.predicted_s),
                          seconds(t.measured_s), quartiles(t), signed(t.excess_s),
                          percent(t.accuracy) if t.predicted_s else "-"))
    show(title, (of, "part", "predicted", "measured", "quartiles", "off by", "accuracy"), lines,
         left=2, drop=("quartiles", "off by"), wide=wide)


def _show_terms(row: Row, most: int, wide: bool) -> None:
    """The largest deviations, and their sums by cause."""
    lines = [(t.cause, t.what, signed(t.excess_s), f"{t.share:+.0%}", seconds(t.predicted_s),
              seconds(t.measured_s)) for t in row.terms[:most]]
    rest = row.terms[most:]
    if rest:
        lines.append(("", f"{len(rest)} others", signed(sum(t.excess_s for t in rest)),
                      f"{sum(t.share for t in rest):+.0%}",
                      seconds(sum(t.predicted_s for t in rest)),
                      seconds(sum(t.measured_s for t in rest))))
    show("\nWhere the unexpected time went",
         ("cause", "what", "off by", "share", "predicted", "measured"), lines, left=2,
         drop=("share", "predicted", "measured"), wide=wide)
    by_cause = {cause: sum(t.excess_s for t in row.terms if t.cause == cause)
                for cause in dict.fromkeys(t.cause for t in row.terms)}
    sums = ", ".join(f"{cause} {signed(excess)}" for cause, excess in by_cause.items())
    show_line(f"by cause: {sums}; in all {signed(sum(by_cause.values()))}")


def most_off(layers: Mapping[str, Split], count: int) -> dict[str, Split]:
    """The layers with the largest deviations, in schedule order."""
    by_size = sorted(layers, key=lambda name: -abs(whole(layers[name]).excess_s))
    return {name: parts for name, parts in layers.items() if name in by_size[:count]}


def show_rows(rows: Sequence[Row], everything: bool = False, wide: bool = False) -> None:
    """Prints a table of the runs, then tables of the phases, layers and terms of each.

    `everything` shows all layers, terms and steps; `wide` shows all columns.
    """
    show_line(of_comparison(rows, mean_accuracy(rows)))
    _show_runs(rows, wide)
    for row in rows:
        _show_one(row, everything, wide)
    shared = next((row.node for row in rows if row.node.shared), None)
    if shared is not None:
        say(f"note: {shared}")
    for row in rows:
        if row.record.ranks[0].device == SIMULATED:
            say(f"note: {row.record.path} is a simulation: its measured times are simulated")
    compared = ", ".join(f"{row.compared} of {row.record.iterations}" for row in rows)
    show_line(f"\nMeasured after the warm-up ({compared} iterations). The iteration is the slowest "
              "rank's median. Its parts come from the rank that computes longest: means without "
              "the slowest and fastest tenth of the iterations. Communication is exposed "
              "communication; waiting ends when the last partner arrives. Shares refer to the "
              "sum of absolute deviations.")


def recorded(record: RunRecord) -> list[str]:
    """Lines on how many iterations of its training a record has, and which are missing."""
    lines, held = [], record.done - record.first - record.missing
    if record.done:
        lines.append(f"recorded: {held} of the training's {record.done} iterations"
                     + f", as a sample of {record.iterations}" * (record.iterations < held))
    if record.first:
        lines.append(f"iterations 1 to {record.first} are missing: the training was resumed after "
                     "them, without their record or under another plan")
    if record.missing:
        lines.append(f"{record.missing} iterations are missing: the run ended before it recorded "
                     "them, and was resumed from a later checkpoint")
    return lines


def _show_one(row: Row, everything: bool, wide: bool) -> None:
    where = f"{row.file}: {row.name}"
    epoch = f": an epoch of {row.batches_per_epoch} iterations, predicted " + (
        f"{seconds(row.epoch.predicted_s)}, measured {seconds(row.epoch.measured_s)}"
        ) if row.epoch else ""
    show_line(f"\n{where}{epoch}")
    for line in recorded(row.record):
        show_line(line)
    if row.anchor:
        show_line(f"to correct other predictions by it: --measured '{row.anchor}'")
    if row.memory_bytes is not None:
        show_line(f"arrays of the largest rank: predicted {amount(row.predicted_memory_bytes)}, "
            f"allocated {amount(row.memory_bytes)}")
    stages = f", mean of {row.stages} stages" if row.stages > 1 else ""
    _show_splits(f"\n{where}, one iteration by phase{stages}", "phase", row.phases,
                 wide)
    layers, some = row.layers, ""
    if len(layers) > _LAYERS and not everything:
        layers = most_off(layers, _LAYERS)
        some = f", the {_LAYERS} of {len(row.layers)} with the largest deviations (--all: all)"
    _show_splits(f"\n{where}, one iteration by layer{some}", "layer", layers, wide)
    if everything:
        _show_splits(f"\n{where}, one iteration by step", "step",
                     {step.name: step.parts for step in row.steps}, wide)
    _show_terms(row, len(row.terms) if everything else _TERMS, wide)
    if not row.tells_waiting and row.ranks > 1:
        show_line("The record keeps no step times of the compared iterations: waiting for other "
                  "ranks counts as communication.")
    if row.test_accuracy is not None:
        pixels = row.test_pixels
        of = "" if pixels is None else f" of pixels ({of_pixels(pixels.to_json())})"
        show_line(f"held-out accuracy {percent(row.test_accuracy)}{of}")
        if pixels is not None:
            for what, each in ("Dice", pixels.dice), ("IoU", pixels.iou):
                known = (f"{i}: {x:.4f}" for i, x in enumerate(each) if x is not None)
                show_line(f"{what} by class: {', '.join(known)}")
    elif row.test_loss is not None:
        show_line(f"held-out loss {row.test_loss:.4g}")


def show_calls(name: str, calls: Sequence[Calls], hidden: int, everything: bool,
               wide: bool) -> None:
    """Prints every step's calls, the largest deviations first; `hidden` steps are not timed."""
    by_deviation = sorted(calls, key=lambda c: -abs(c.median_s - c.predicted_s))
    shown = by_deviation if everything else by_deviation[:_CALLS]
    title = f"calls of {name}: {len(calls[0].seconds)} of each of {plural(len(calls), 'step')}"
    show(title, ("phase", "step", "ranks", "algorithm", "sent", "predicted", "median", "worst",
                 "outliers"),
         [(c.phase, c.label, c.ranks, c.algorithm, amount(c.sent_bytes), seconds(c.predicted_s),
           seconds(c.median_s), seconds(float(c.seconds.max())),
           ", ".join(map(str, c.outliers[:3])) + " ..." * (len(c.outliers) > 3) or "-")
          for c in shown],
         left=2, text=("algorithm", "outliers"), drop=("algorithm", "ranks", "phase"), wide=wide)
    show_line(f"sent: by the busiest rank in a call; outliers: iterations whose call takes over "
              f"{OUTLIER:g} times the median, {sum(len(c.outliers) for c in calls)} in all")
    if hidden:
        show_line(f"not timed: {plural(hidden, 'step')} beside computing (plan with --overlap "
                  "none) or of the loss")
