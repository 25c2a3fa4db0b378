"""Results in common: records, a table in a notebook, a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from hpcpar.cost.price_plan import Prediction
from hpcpar.errors import InputError
from hpcpar.report.tables import amount, percent, seconds

if TYPE_CHECKING:
    import pandas

#: One row by column; the names of numbers end in their unit.
Record = dict[str, object]
#: Rows of the table in a notebook.
_SHOWN = 20


class TableResult:
    """A result of which the repr is the answer, and the table has a row for each record."""

    @property
    def answer(self) -> str:
        """The result in one sentence."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.answer

    def records(self) -> Sequence[Record]:
        """The rows of the table."""
        raise NotImplementedError

    def to_frame(self) -> pandas.DataFrame:
        """The table as a data frame.

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
        return pandas.DataFrame(self.records())

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        records = self.records()
        rows = [("th", [_head(name) for name in records[0]])] if records else []
        rows += [("td", [_cell(*item) for item in row.items()]) for row in records[:_SHOWN]]
        lines = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in rows]
        table = "\n".join(f"<tr>{line}</tr>" for line in lines)
        more = f"<p>and {len(records) - _SHOWN} more</p>" if len(records) > _SHOWN else ""
        return f"<p>{escape(self.answer)}</p>\n<table>\n{table}\n</table>{more}"


def _head(name: str) -> str:
    """A column without its unit, which the cells have."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


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


def prediction_record(p: Prediction) -> Record:
    """The row of a prediction."""
    names = ("strategy", "ranks", "batch", "iteration_s", "epoch_s", "compute_s", "communication_s",
             "exposed_communication_s", "bubble_s")
    return {name: getattr(p, name) for name in names} | {
        "sent_bytes": p.communication_bytes, "memory_bytes": p.memory_bytes, "fits": p.fits}
