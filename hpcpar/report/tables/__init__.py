"""Text for people: results on stdout, notes on stderr; tables whose columns fit the width."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hpcpar.errors import visible
from hpcpar.variables import whole_number

if TYPE_CHECKING:
    from hpcpar.cost.trust import Trust

#: Width of text that goes to a file or a pipe, unless COLUMNS is set.
PLAIN_WIDTH = 200
#: Width at which no table loses a column.
_UNLIMITED = 100_000


class ResultConsole(Console):
    """Stdout: as wide as the terminal, as COLUMNS says, or `PLAIN_WIDTH`."""

    def __init__(self, wide: bool = False) -> None:
        self.known_width = sys.stdout.isatty() or whole_number("COLUMNS") is not None
        width = None if self.known_width else PLAIN_WIDTH
        super().__init__(highlight=False, width=_UNLIMITED if wide else width)

    def on_broken_pipe(self) -> None:
        """Leaves a closed pipe to the caller, as a plain write does."""
        raise


def say(text: str) -> None:
    """Prints a note on stderr, broken only on a terminal."""
    out = Console(stderr=True, highlight=False)
    out.print(visible(text), markup=False, soft_wrap=not out.is_terminal)


def show_line(text: str) -> None:
    """Prints a sentence of the results on stdout, broken only where the width is known."""
    out = ResultConsole()
    out.print(visible(text), markup=False, soft_wrap=not out.known_width)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1,
         drop: Sequence[str] = (), text: Sequence[str] = (), wide: bool = False) -> None:
    """Prints a table on stdout: framed on a terminal, plain columns elsewhere.

    Parameters
    ----------
    left : int
        The first so many columns are text, the others are aligned to the right.
    text : sequence of str
        Further columns that are text.
    drop : sequence of str
        Columns that are left out where the table is too wide, the first one first.
    wide : bool
        Leaves none out.
    """
    out = ResultConsole(wide)
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    shown = [(i < left or name in text, name, [row[i] for row in cells])
             for i, name in enumerate(columns)]
    gone: list[str] = []
    while len(gone) < len(drop) and _width(_table(shown, out.is_terminal)) > out.width:
        gone.append(drop[len(gone)])
        shown = [column for column in shown if column[1] != gone[-1]]
    out.print(visible(title), style="bold", markup=False)
    out.print(_table(shown, out.is_terminal))
    if gone:
        say(f"note: too narrow for {', '.join(gone)}: --wide shows all")


def _table(columns: Sequence[tuple[bool, str, Sequence[str]]], framed: bool) -> Table:
    """A table of columns: whether it is text, its name and its cells."""
    table = Table(box=box.SIMPLE_HEAD if framed else None, pad_edge=False)
    for text, name, _ in columns:
        table.add_column(name, justify="left" if text else "right", no_wrap=not text,
                         overflow="fold")
    for row in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*map(escape, row))
    return table


def _width(table: Table) -> int:
    """Width of a table that nothing folds."""
    return Console(file=io.StringIO(), width=_UNLIMITED).measure(table).maximum


def seconds(value: float | None) -> str:
    """A duration as people say it: 76.7 ms, 4.2 s, 3 min 20 s, 19 h 40 min."""
    if value is None:
        return "-"
    if value < 0:
        return f"-{seconds(-value)}"
    for large, small, step, least in (("h", "min", 60, 3599.5), ("min", "s", 1, 59.995)):
        if value >= least:
            whole, rest = divmod(round(value / step), 60)
            return f"{whole} {large}" + (f" {rest} {small}" if rest else "")
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.4g} {unit}"
    return "0" if value == 0 else f"{value / 1e-9:.3g} ns"


def between(value_s: float, interval_s: tuple[float, float] | None) -> str:
    """A duration and its 90% interval, where that is known: 22.5 ms (21.9 to 23.4)."""
    told = seconds(value_s)
    if interval_s is None:
        return told
    ends = [seconds(end) for end in interval_s]
    _, *unit = told.split()
    if len(unit) == 1 and all(end.endswith(f" {unit[0]}") for end in ends):
        ends = [end.split()[0] for end in ends]
    return f"{told} ({' to '.join(ends)})"


def ends(value_s: float, trust: Trust) -> list[str]:
    """The ends of a 90% interval: of two digits where nothing was measured."""
    digits = "" if trust.calibrated else ".2g"
    return [seconds(float(format(end_s, digits))) for end_s in trust.interval_s(value_s)]


def span(value_s: float, trust: Trust) -> str:
    """A 90% interval, its unit once, and where it comes from: 22 to 44 ms: calibrated."""
    low, high = ends(value_s, trust)
    number, *unit = low.split()
    low = number if unit == high.split()[1:] and len(unit) == 1 else low
    return f"{low} to {high}: {trust.words}"


def trusted(value_s: float, takes: str, trust: Trust) -> str:
    """A predicted time, what takes it, and its interval: about 31 ms an iteration (22 to 44 ms:
    data sheet of the T4, not calibrated; ...).
    """
    about = seconds(value_s) if trust.calibrated else f"about {seconds(float(f'{value_s:.2g}'))}"
    return f"{about} {takes} ({span(value_s, trust)})"


def percent(value: float | None) -> str:
    """An accuracy; below 0 it is shown as 0."""
    return "-" if value is None else f"{max(0.0, value):.1%}"


def amount(value: float, unit: str = "B") -> str:
    """A quantity with a decimal prefix (kB, MB, Gflop)."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
