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

#: Columns of a file; a measurement in text has the same words.
COLUMNS = ("ranks", "batch", "seconds", "samples_per_s", "network", "precision", "strategy",
           "machine")
_FORM = "write it as in '8 ranks, batch 256: 346 ms', or name a .csv file"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_TIME = re.compile(r"([\d.,e+-]+)\s*(us|ms|s|min|samples/s|images/s)")
_RANKS, _BATCH = re.compile(r"(\S+) ranks?"), re.compile(r"batch (\S+)( per rank)?")
_WORD = re.compile(r"(network|precision|strategy|machine) (\S+)")


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
    if isinstance(value, Measurement):
        return value
    text = str(value).strip()
    if text.endswith(".csv"):
        return path(text)
    try:
        return _of(_words(text))
    except ValueRefused as err:
        raise ValueRefused(f"'{text}': {err}") from err


def measurements(values: Iterable[Measurement | str]) -> list[Measurement]:
    """All measurements, including the rows of files.

    Raises
    ------
    InputError
        A file cannot be read, or a row of it is not a measurement.
    """
    out: list[Measurement] = []
    for value in values:
        out += _rows(value) if isinstance(value, str) else [value]
    return out


def _words(text: str) -> dict[str, str]:
    """The columns of a measurement in text."""
    head, _, tail = text.rpartition(":")
    time = _TIME.fullmatch(tail.strip())
    if time is None:
        raise ValueRefused(f"it has no time; {_FORM}")
    number, unit = time[1].replace(",", ""), time[2]
    out = {"samples_per_s": number} if unit not in _SECONDS else {
        "seconds": repr(_SECONDS[unit] * amount(number))}
    for part in (part.strip() for part in head.split(",")):
        if found := _RANKS.fullmatch(part):
            out["ranks"] = found[1]
        elif found := _BATCH.fullmatch(part):
            out["batch_per_rank" if found[2] else "batch"] = found[1]
        elif found := _WORD.fullmatch(part):
            out[found[1]] = found[2]
        elif part.isalnum():
            out["precision"] = part
        else:
            raise ValueRefused(f"'{part}' is unknown; {_FORM}")
    return out


def _of(cells: Mapping[str, str]) -> Measurement:
    """The measurement of a row."""
    given = {name: cell for name, cell in cells.items() if cell}
    for name in ("ranks", "batch"):
        if not {name, f"{name}_per_rank"} & given.keys():
            raise ValueRefused(f"it has no {name}; {_FORM}")
    if ("seconds" in given) == ("samples_per_s" in given):
        raise ValueRefused("give either seconds or samples_per_s")
    size = ranks(given.pop("ranks"))
    batch = (positive(given.pop("batch")) if "batch" in given
             else size * positive(given.pop("batch_per_rank")))
    seconds = (amount(given.pop("seconds")) if "seconds" in given
               else batch / amount(given.pop("samples_per_s")))
    if "precision" in given:
        OneOf(PRECISIONS, FORMATS)(given["precision"])
    return Measurement(size, batch, seconds, **given)


def _rows(file: str) -> list[Measurement]:
    """The measurements of a CSV file."""
    text = read_bytes(file, "measurements", f"its columns are among {', '.join(COLUMNS)}")
    reader = csv.DictReader(io.StringIO(text.decode("utf-8-sig", errors="replace"), newline=""))
    for name in reader.fieldnames or ():
        if name not in COLUMNS:
            raise InputError(f"measurements {file}: {unknown('column', name, COLUMNS)}")
    out = []
    for number, row in enumerate(reader, 2):
        try:
            if None in row or None in row.values():
                raise ValueRefused("it has not as many cells as the header")
            out.append(_of({name: cell.strip() for name, cell in row.items()}))
        except ValueRefused as err:
            raise InputError(f"measurements {file}, line {number}: {err}") from err
    if not out:
        raise InputError(f"measurements {file}: no row; its columns are among "
                         f"{', '.join(COLUMNS)}")
    return out
