"""Measured iterations as users write them: text, or the rows of a CSV file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcpar.errors import InputError, unknown
from hpcpar.io.schema import read_bytes
from hpcpar.options.checks import OneOf, ValueRefused, amount, path, positive, ranks
from hpcpar.options.other_names import FORMATS
from hpcpar.plan.precision import PRECISIONS

#: Columns of a file; text has the same words.
COLUMNS = ("ranks", "batch", "batch_per_rank", "seconds", "samples_per_s", "network", "precision",
           "strategy", "machine")
_NEEDED = "give ranks, one batch and one time, as in '8 ranks, batch 256: 346 ms'"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_TIME = re.compile(r"([\d.,e+-]+)\s*(us|ms|s|min|samples/s|images/s)")
_PART = re.compile(
    r"(?P<ranks>\S+) ranks?|batch (?P<batch_per_rank>\S+) per rank|batch (?P<batch>\S+)"
    r"|network (?P<network>\S+)|strategy (?P<strategy>\S+)|machine (?P<machine>\S+)"
    r"|(?:precision )?(?P<precision>\w+)")


@dataclass(frozen=True)
class Measurement:
    """A measured iteration; empty words mean the network, format and machine of the question."""

    ranks: int
    batch: int
    seconds: float
    network: str = ""
    precision: str = ""
    strategy: str = "data"
    machine: str = ""

    @property
    def name(self) -> str:
        """The measurement in words, without its time."""
        own = (f"{self.ranks} rank{'s' * (self.ranks > 1)}", f"batch {self.batch}",
               self.precision, self.strategy * (self.strategy != "data"), self.machine)
        return ", ".join(filter(None, own))


def measurement(value: object) -> Measurement | str:
    """A measurement from text, or the path of a CSV file."""
    text = str(value).strip()
    if isinstance(value, Measurement) or text.endswith(".csv"):
        return value if isinstance(value, Measurement) else path(text)
    head, _, tail = text.rpartition(":")
    time, parts = _TIME.fullmatch(tail.strip()), [_PART.fullmatch(p.strip())
                                                  for p in head.split(",")]
    try:
        if time is None or None in parts:
            raise ValueRefused(_NEEDED)
        number, scale = time[1].replace(",", ""), _SECONDS.get(time[2])
        cells = {"samples_per_s": number} if scale is None else {
            "seconds": repr(scale * amount(number))}
        for part in filter(None, parts):
            cells |= {name: word for name, word in part.groupdict().items() if word}
        return _of(cells)
    except ValueRefused as err:
        raise ValueRefused(f"'{text}': {err}") from err


def measurements(values: Iterable[Measurement | str]) -> list[Measurement]:
    """All measurements, including the rows of files.

    Raises
    ------
    InputError
        A file cannot be read, or a row of it is not a measurement.
    """
    return [found for value in values
            for found in (_rows(value) if isinstance(value, str) else [value])]


def _of(cells: Mapping[str, str]) -> Measurement:
    """The measurement of a row."""
    given = {name: cell.strip() for name, cell in cells.items() if cell and cell.strip()}
    if "ranks" not in given or any(len(two & given.keys()) != 1 for two in (
            {"batch", "batch_per_rank"}, {"seconds", "samples_per_s"})):
        raise ValueRefused(_NEEDED)
    size, each = ranks(given.pop("ranks")), given.pop("batch_per_rank", "")
    batch = size * positive(each) if each else positive(given.pop("batch"))
    rate = given.pop("samples_per_s", "")
    seconds = batch / amount(rate) if rate else amount(given.pop("seconds"))
    OneOf(PRECISIONS, FORMATS)(given.get("precision", "fp32"))
    return Measurement(size, batch, seconds, **given)


def _rows(file: str) -> list[Measurement]:
    """The measurements of a CSV file."""
    where, known = f"measurements {file}", f"its columns are among {', '.join(COLUMNS)}"
    text = read_bytes(file, "measurements", known).decode("utf-8-sig", errors="replace")
    try:
        rows = [*csv.DictReader(io.StringIO(text, newline=""))]
    except csv.Error as err:
        raise InputError(f"{where}: not CSV ({err}); {known}") from err
    out = []
    for number, row in enumerate(rows, 2):
        try:
            for name in row:
                if name not in COLUMNS:
                    raise ValueRefused(unknown("column", name or "without a name", COLUMNS))
            out.append(_of(row))
        except ValueRefused as err:
            raise InputError(f"{where}, line {number}: {err}") from err
    if not out:
        raise InputError(f"{where}: no row; {known}")
    return out
