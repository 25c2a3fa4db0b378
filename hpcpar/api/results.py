"""The base of results: an answer, rows of plain data, a data frame, a table for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, ClassVar

from hpcpar.errors import InputError
from hpcpar.report.tables import amount, percent, seconds

if TYPE_CHECKING:
    import pandas

#: Column -> value; names of numbers end in their unit.
Record = dict[str, object]
#: Rows of the table in a notebook.
_SHOWN = 20


class TableResult:
    """A result whose repr is the answer in one sentence."""

    #: Columns of the table in a notebook.
    columns: ClassVar[Sequence[str]] = (
        "strategy", "ranks", "batch", "iteration_s", "epoch_s", "compute_s",
        "exposed_communication_s", "memory_bytes", "fits", "efficiency", "node_hours")

    @property
    def answer(self) -> str:
        """The result in one sentence."""
        raise NotImplementedError

    def rows(self) -> list[Record]:
        """The rows that the command prints with ``--csv``."""
        raise NotImplementedError

    def _shown(self) -> list[Record]:
        """The rows of the table in a notebook."""
        return self.rows()

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a data frame.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError as err:
            raise InputError(
                f"data frames need pandas ({err}); install it with: pip install pandas") from err
        return pandas.DataFrame(self.rows())

    def __repr__(self) -> str:
        return self.answer

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        rows = self._shown()
        names = [name for name in self.columns if rows and name in rows[0]]
        table = [("th", [_head(name) for name in names])]
        table += [("td", [_cell(name, row.get(name)) for name in names]) for row in rows[:_SHOWN]]
        lines = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in table]
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        more = f"<p>and {len(rows) - _SHOWN} more</p>" if len(rows) > _SHOWN else ""
        return f"<p>{escape(self.answer)}</p>\n<table>\n{body}\n</table>{more}"


def flat(rows: Iterable[Mapping[str, object]]) -> list[Record]:
    """Flattens nested rows.

    A dot joins nested names, and a space joins the values of a list; lists of tables are dropped.
    """
    return [dict(_flat(row)) for row in rows]


def _flat(row: Mapping[str, object], stem: str = "") -> Iterator[tuple[str, object]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{stem}{name}.")
        elif not isinstance(value, list | tuple):
            yield stem + name, value
        elif not any(isinstance(item, Mapping) for item in value):
            yield stem + name, " ".join(map(str, value))


def _head(name: str) -> str:
    """A column's name without its unit, which the cells show."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ").replace(".", " ")


def _cell(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "-" if value is None else str(value)
    for ending, text in (("_s", seconds), ("_bytes", amount), ("accuracy", percent),
                         ("efficiency", percent)):
        if name.endswith(ending):
            return text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
