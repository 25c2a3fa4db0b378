"""Results in common: as records, a table of a notebook, and a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from hpcpar.cost.price_plan import Prediction
from hpcpar.errors import InputError
from hpcpar.report.tables import amount, percent, seconds

if TYPE_CHECKING:
    import pandas

#: Numbers and words of one row, by column; names end in their unit.
Record = dict[str, object]
#: Rows of the table in a notebook.
_SHOWN = 20


class TableResult:
    """A result of the interface. Its text is a line or two, its table has one row a record."""

    def records(self) -> Sequence[Record]:
        """The rows of the result, with equal columns."""
        raise NotImplementedError

    def to_frame(self) -> pandas.DataFrame:
        """The records as a data frame.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError as err:
            raise InputError(f"data frames need pandas ({err}); install it with: pip install "
                             "pandas") from err
        return pandas.DataFrame(self.records())

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        records = self.records()
        lines = [f"<p>{escape(line)}</p>" for line in repr(self).splitlines()]
        if records:
            heads = "".join(f"<th>{escape(_head(name))}</th>" for name in records[0])
            lines += ["<table>", f"<tr>{heads}</tr>"]
            lines += [f"<tr>{_cells(record)}</tr>" for record in records[:_SHOWN]]
            lines.append("</table>")
        if len(records) > _SHOWN:
            lines.append(f"<p>{len(records) - _SHOWN} more: to_frame() has all</p>")
        return "\n".join(lines)


def _head(name: str) -> str:
    """The name of a column without its unit, which its cells have."""
    return name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _cells(record: Mapping[str, object]) -> str:
    return "".join(f"<td>{escape(_cell(name, value))}</td>" for name, value in record.items())


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_s"):
            return seconds(value)
        if name.endswith("_bytes"):
            return amount(value)
        if name.endswith(("accuracy", "efficiency")):
            return percent(value)
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(value)


def prediction_record(p: Prediction) -> Record:
    """One row of a table of predictions."""
    names = ("strategy", "ranks", "batch", "iteration_s", "epoch_s", "compute_s", "communication_s",
             "exposed_communication_s", "bubble_s")
    return {name: getattr(p, name) for name in names} | {
        "sent_bytes": p.communication_bytes, "memory_bytes": p.memory_bytes, "fits": p.fits}
