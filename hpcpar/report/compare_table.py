"""Tables of simulated against measured for people, on stderr: at most 100 columns wide."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar.report.compare import Row, Split, Times, mean_accuracy, whole
from hpcpar.report.tables import amount

#: Width of plain text that goes to a file or a pipe.
_WIDTH = 100
#: Terms and layers in the tables, unless all are asked for.
_TERMS, _LAYERS = 10, 16


def seconds(value: float | None) -> str:
    """A time in a unit that suits it."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(
                value) < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value * 1e6:.3g} us" if value else "0"


def percent(value: float | None) -> str:
    """An accuracy; below 0 it is shown as 0."""
    return "-" if value is None else f"{100 * max(0.0, value):.1f}%"


def quartiles(times: Times) -> str:
    """The middle half of the iterations."""
    if times.low_s is None or times.high_s is None:
        return "-"
    low, high = seconds(times.low_s), seconds(times.high_s)
    same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    return f"{low.rpartition(' ')[0] if same and ' ' in low else low} - {high}"


def signed(value: float) -> str:
    """A difference of times."""
    return seconds(value) if value < 0 else f"+{seconds(value)}"


def _table(title: str, columns: Sequence[str], console: Console, texts: int = 1,
           folds: str = "") -> Table:
    """An empty table: lines around it on a terminal, bare columns elsewhere; the first `texts`
    columns hold text, that of `folds` wraps.
    """
    table = Table(title=title, title_justify="left", box=box.ROUNDED if console.is_terminal
                  else None, pad_edge=console.is_terminal)
    for i, column in enumerate(columns):
        wraps = column == folds or i == 0
        table.add_column(column, justify="left" if i < texts or column == folds else "right",
                         no_wrap=not wraps, overflow="fold")
    return table


def runs_table(rows: Sequence[Row], console: Console) -> Table:
    """One line a run."""
    names = {row.network for row in rows}
    title = "Predicted and measured time of an iteration"
    if len(names) == 1:
        title += f", {next(iter(names))}"
    network = ("network",) if len(names) > 1 else ()
    columns = ("run", *network, "strategy", "ranks", "batch", "predicted", "measured", "quartiles",
               "accuracy")
    table = _table(title, columns, console, len(columns) - 6)
    for row in rows:
        of, t = (row.network,) if len(names) > 1 else (), row.iteration
        table.add_row(os.path.basename(row.path), *of, row.strategy, str(row.ranks),
                      str(row.batch), seconds(t.predicted_s), seconds(t.measured_s),
                      quartiles(t), percent(t.accuracy))
    if len(rows) > 1:
        table.add_row("mean", *[""] * (len(columns) - 2), percent(mean_accuracy(rows)))
    return table


def split_table(title: str, of: str, splits: Mapping[str, Split], console: Console) -> Table:
    """A line for each part of a phase, layer or step that takes time: predicted, measured and its
    quartiles over the iterations.
    """
    table = _table(title, (of, "part", "predicted", "measured", "quartiles", "off by", "accuracy"),
                   console, 2)
    for name, parts in splits.items():
        shown = {part: t for part, t in parts.items() if t.measured_s or t.predicted_s}
        for i, (part, times) in enumerate(shown.items()):
            off = "-" if times.predicted_s is None else signed(times.measured_s - times.predicted_s)
            accuracy = percent(times.accuracy) if times.predicted_s else "-"
            table.add_row(name if i == 0 else "", part, seconds(times.predicted_s),
                          seconds(times.measured_s), quartiles(times), off, accuracy)
    return table


def terms_table(row: Row, console: Console, most: int) -> Table:
    """The largest deviations."""
    columns = ("off by", "share", "cause", "what", "predicted", "measured")
    table = _table("Where the time went that was not foreseen", columns, console, 0, "what")
    for term in row.terms[:most]:
        table.add_row(signed(term.excess_s), f"{100 * term.share:+.0f}%", term.cause, term.what,
                      seconds(term.predicted_s), seconds(term.measured_s))
    left = row.terms[most:]
    if left:
        excess_s, share = sum(t.excess_s for t in left), sum(t.share for t in left)
        predicted_s = sum(t.predicted_s for t in left)
        measured_s = sum(t.measured_s for t in left)
        table.add_row(signed(excess_s), f"{100 * share:+.0f}%", "", f"{len(left)} others together",
                      seconds(predicted_s), seconds(measured_s))
    return table


def _most_off(layers: dict[str, Split], most: int) -> dict[str, Split]:
    """The layers that are most off (or take longest, where nothing is predicted), in their order.
    """
    sums = {name: whole(parts) for name, parts in layers.items()}
    by_size = sorted(sums,
                     key=lambda name: -abs(sums[name].measured_s - (sums[name].predicted_s or 0.0)))
    return {name: parts for name, parts in layers.items() if name in by_size[:most]}


def show(rows: Sequence[Row], console: Console | None = None, everything: bool = False) -> None:
    """Print all tables: the runs, then the phases, layers and terms of each.

    Parameters
    ----------
    console : Console, optional
        Where to; stderr by default.
    everything : bool
        All layers and terms, and every step.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(runs_table(rows, console))
    for row in rows:
        _show_one(row, console, everything)
    shared = next((row.node for row in rows if row.node.shared), None)
    if shared is not None:
        console.print(f"\nnote: {shared}", highlight=False)
    compared = ", ".join(f"{row.compared} of {row.iterations}" for row in rows)
    console.print(
        f"\nMeasured after the warm-up ({compared} iterations): an iteration is the slowest "
        "rank's median; its parts are those of the "
        "rank that computes longest, the mean without the extreme tenths. Communication is what "
        "computing does not hide; waiting is the "
        "part of it before the last partner took part. Shares are of all deviations, whatever "
        "their sign.", style="dim", highlight=False,
    )


def _show_one(row: Row, console: Console, everything: bool) -> None:
    where = f"{os.path.basename(row.path)}: {row.name}"
    if row.epoch is not None:
        console.print(f"\n{where}: an epoch of {row.batches_per_epoch} iterations, predicted "
                      f"{seconds(row.epoch.predicted_s)}, measured "
                      f"{seconds(row.epoch.measured_s)}", highlight=False)
    if row.memory_bytes is not None and row.predicted_memory_bytes is not None:
        console.print("arrays of the largest rank: predicted "
                      f"{amount(row.predicted_memory_bytes, 'B')}, allocated "
                      f"{amount(row.memory_bytes, 'B')}", highlight=False)
    stages = f", mean of {row.stages} stages" if row.stages > 1 else ""
    console.print()
    console.print(split_table(f"{where}, one iteration by phase{stages}", "phase", row.phases,
                              console))
    console.print()
    most = len(row.layers) if everything else _LAYERS
    chosen = _most_off(row.layers, most)
    some = f", the {most} of {len(row.layers)} that are most off (all with --all)" if len(
        row.layers) > most else ""
    console.print(split_table(f"{where}, one iteration by layer{some}", "layer", chosen, console))
    if everything:
        console.print()
        console.print(split_table(f"{where}, one iteration by step", "step",
                                  {s.name: s.parts for s in row.steps}, console))
    if row.terms:
        console.print()
        console.print(terms_table(row, console, len(row.terms) if everything else _TERMS))
        by_cause = {cause: sum(t.excess_s for t in row.terms if t.cause == cause)
                    for cause in dict.fromkeys(t.cause for t in row.terms)}
        sums = ", ".join(f"{cause} {signed(excess)}" for cause, excess in by_cause.items())
        console.print(f"in sum: {sums}; together {signed(sum(by_cause.values()))}", highlight=False)
    if not row.tells_waiting and row.ranks > 1:
        console.print("This record has no times at which steps began: waiting for other ranks is "
                      "shown as communication.", highlight=False)
    if row.test_accuracy is not None:
        console.print(f"held-out accuracy {percent(row.test_accuracy)}", highlight=False)
    elif row.test_loss is not None:
        console.print(f"held-out loss {row.test_loss:.4g}", highlight=False)
