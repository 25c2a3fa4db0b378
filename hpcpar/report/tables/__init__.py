"""Text for people: results on stdout, notes on stderr, tables that fit the terminal."""

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
from hpcpar.process.launchers import whole_number

if TYPE_CHECKING:
    from hpcpar.cost.ratios import Ratio
    from hpcpar.cost.trust import Trust

#: Width of text that goes to a file or a pipe, unless COLUMNS is set.
PLAIN_WIDTH = 200
#: Width at which no table loses a column.
_UNLIMITED = 100_000


class ResultConsole(Console):
    """Stdout, as wide as the terminal or COLUMNS; else `PLAIN_WIDTH`."""

    def __init__(self, wide: bool = False) -> None:
        self.known_width = sys.stdout.isatty() or whole_number("COLUMNS") is not None
        width = None if self.known_width else PLAIN_WIDTH
        super().__init__(highlight=False, width=_UNLIMITED if wide else width)

    def on_broken_pipe(self) -> None:
        """Leaves a closed pipe to the caller, as ``print`` does."""
        raise


def say(text: str) -> None:
    """Prints a note on stderr, wrapped only on a terminal."""
    out = Console(stderr=True, highlight=False)
    out.print(visible(text), markup=False, soft_wrap=not out.is_terminal)


def show_line(text: str) -> None:
    """Prints a sentence of the results on stdout, wrapped only if the width is known."""
    out = ResultConsole()
    out.print(visible(text), markup=False, soft_wrap=not out.known_width)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1,
         drop: Sequence[str] = (), text: Sequence[str] = (), wide: bool = False) -> None:
    """Prints a table on stdout: framed on a terminal, plain columns elsewhere.

    Parameters
    ----------
    left : int
        Number of text columns at the left; other columns are right-aligned.
    text : sequence of str
        Further text columns.
    drop : sequence of str
        Columns to leave out of a table that is too wide, in this order; none if `wide`.
    """
    out = ResultConsole(wide)
    cells = [[visible(str(cell)) for cell in row] for row in rows]
    shown = [(i < left or name in text, name, [row[i] for row in cells])
             for i, name in enumerate(columns)]
    gone: list[str] = []
    unwrapped = Console(file=io.StringIO(), width=_UNLIMITED)
    while len(gone) < len(drop) and (
            unwrapped.measure(_table(shown, out.is_terminal)).maximum > out.width):
        gone.append(drop[len(gone)])
        shown = [column for column in shown if column[1] != gone[-1]]
    out.print(visible(title), style="bold", markup=False)
    out.print(_table(shown, out.is_terminal))
    if gone:
        say(f"note: columns left out to fit the width: {', '.join(gone)}; --wide shows all")


def _table(columns: Sequence[tuple[bool, str, Sequence[str]]], framed: bool) -> Table:
    """A table; each column says whether it is text, and has a name and cells."""
    table = Table(box=box.SIMPLE_HEAD if framed else None, pad_edge=False)
    for text, name, _ in columns:
        table.add_column(name, justify="left" if text else "right", no_wrap=not text,
                         overflow="fold")
    for row in zip(*(cells for _, _, cells in columns), strict=True):
        table.add_row(*map(escape, row))
    return table


def seconds(value: float | None) -> str:
    """A duration in familiar units: 76.7 ms, 4.2 s, 3 min 20 s, 19 h 40 min."""
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
    """A duration with its 90% interval, if known: 22.5 ms (21.9 to 23.4)."""
    value = seconds(value_s)
    if interval_s is None:
        return value
    ends = [seconds(end) for end in interval_s]
    _, *unit = value.split()
    if len(unit) == 1 and all(end.endswith(f" {unit[0]}") for end in ends):
        ends = [end.split()[0] for end in ends]
    return f"{value} ({' to '.join(ends)})"


def ends(value_s: float, trust: Trust) -> list[str]:
    """The ends of a 90% interval, with two digits if it is rough."""
    digits = ".2g" if trust.rough else ""
    return [seconds(float(format(end_s, digits))) for end_s in trust.interval_s(value_s)]


def span(value_s: float, trust: Trust) -> str:
    """A 90% interval with its basis, the unit written once: 22 to 44 ms: calibrated."""
    low, high = ends(value_s, trust)
    number, *unit = low.split()
    low = number if unit == high.split()[1:] and len(unit) == 1 else low
    return f"{low} to {high}: {trust.words}"


def trusted(value_s: float, takes: str, trust: Trust) -> str:
    """A predicted time with its interval: about 31 ms per iteration (22 to 44 ms: data sheet of the
    T4, not calibrated; ...).
    """
    about = f"about {seconds(float(f'{value_s:.2g}'))}" if trust.rough else seconds(value_s)
    return f"{about} {takes} ({span(value_s, trust)})"


def percent(value: float | None) -> str:
    """An accuracy in percent; negative values appear as 0."""
    return "-" if value is None else f"{max(0.0, value):.1%}"


def with_ends(ratio: Ratio) -> str:
    """A ratio with its 90% interval: 1.36 (1.21 to 1.58)."""
    return f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"


def in_percent(ratio: Ratio) -> str:
    """A ratio in percent with its 90% interval, if it is uncertain: 85.3% (72% to 101%)."""
    ends = f" ({ratio.low:.0%} to {ratio.high:.0%})" * (ratio.low < ratio.high)
    return f"{ratio.value:.1%}{ends}"


def amount(value: float, unit: str = "B") -> str:
    """A quantity with a decimal prefix: 3.2 MB, 1.4 Gflop."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
