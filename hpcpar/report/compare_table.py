"""Tables of simulated against measured for people, on stderr."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpar.report.compare import Row, Split, Times, mean_accuracy


def seconds(value: float | None) -> str:
    """A time in a unit that suits it."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value * 1e6:.3g} us" if value else "0"


def percent(value: float | None) -> str:
    """An accuracy; below 0 it is shown as 0."""
    return "-" if value is None else f"{100 * max(0.0, value):.1f}%"


def _table(title: str, columns: Sequence[str], console: Console, texts: int = 1) -> Table:
    """An empty table: lines around it on a terminal, bare columns elsewhere; the first `texts` columns hold text."""
    table = Table(title=title, title_justify="left", box=box.ROUNDED if console.is_terminal else None, pad_edge=console.is_terminal)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < texts else "right", no_wrap=True)
    return table


def _both(times: Times) -> tuple[str, str]:
    return seconds(times.predicted_s), seconds(times.measured_s)


def runs_table(rows: Sequence[Row], console: Console) -> Table:
    """One line a run."""
    times = ("iteration: predicted", "measured", "epoch: predicted", "measured")
    columns = ("run", "network", "strategy", "ranks", "batch", *times, "accuracy")
    table = _table("Predicted and measured time", columns, console, 3)
    for row in rows:
        epoch = _both(row.epoch) if row.epoch else ("-", "-")
        table.add_row(os.path.basename(row.path), row.network, row.strategy, str(row.ranks), str(row.batch),
                      *_both(row.iteration), *epoch, percent(row.iteration.accuracy))
    if len(rows) > 1:
        table.add_row("mean", *[""] * 8, percent(mean_accuracy(rows)))
    return table


def split_table(title: str, of: str, splits: dict[str, Split], console: Console) -> Table:
    """One line a phase or layer, with compute and exposed communication apart."""
    columns = (of, "compute: predicted", "measured", "accuracy", "communication: predicted", "measured", "accuracy")
    table = _table(title, columns, console)
    for name, split in splits.items():
        cells = [cell for times in split.values() for cell in (*_both(times), percent(times.accuracy))]
        table.add_row(name, *cells)
    return table


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print all tables: the runs, then the phases and layers of each.

    Parameters
    ----------
    console : Console, optional
        Where to; stderr by default.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    console.print(runs_table(rows, console))
    for row in rows:
        console.print()
        where = f"{os.path.basename(row.path)}: {row.name}"
        console.print(split_table(f"{where}, one iteration by phase", "phase", row.phases, console))
        console.print()
        console.print(split_table(f"{where}, one iteration by layer", "layer", row.layers, console))
        if row.test_accuracy is not None:
            console.print(f"held-out accuracy {percent(row.test_accuracy)}")
        elif row.test_loss is not None:
            console.print(f"held-out loss {row.test_loss:.4g}")
    compared = ", ".join(f"{row.compared} of {row.iterations}" for row in rows)
    console.print(
        f"\nMeasured after the warm-up ({compared}): an iteration is the slowest rank's, the median; its parts are those of the rank that "
        "computes longest, the mean without the extreme tenths. Communication is what computing does not hide.",
        style="dim", highlight=False,
    )
