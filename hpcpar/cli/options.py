"""Options that several commands share, and the forms of their results."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcpar.api.results import flat
from hpcpar.errors import InputError, visible
from hpcpar.options.checks import ranks
from hpcpar.options.fields import OptionGroup, flag, option


@dataclass(frozen=True, kw_only=True)
class StartOptions(OptionGroup):
    """The start of a job's ranks."""

    start: int | None = option(
        None, ranks, "start P ranks here with mpiexec (default: this process is one rank)", "P",
        names=("-n",), first=True)


@dataclass(frozen=True, kw_only=True)
class ExternalOptions(OptionGroup):
    """Permissions to read files."""

    allow_external: bool = flag("read HDF5 files that keep data in other files")


@dataclass(frozen=True, kw_only=True)
class ResultOptions(OptionGroup, section="output"):
    """The form in which results are printed."""

    json: bool = flag("print everything as one JSON document", excludes="form", first=True)
    csv: bool = flag("print rows of CSV, with units in the column names", excludes="form")
    wide: bool = flag("print all columns of the tables, even on a narrow terminal", excludes="form")

    def show(self, document: Callable[[], Any], rows: Callable[[], Iterable[Mapping[str, object]]],
             tables: Callable[[], object]) -> None:
        """Prints the results in the chosen form."""
        if self.json:
            print_json(document())
        elif self.csv:
            print_csv(rows())
        else:
            tables()


def print_csv(rows: Iterable[Mapping[str, object]]) -> None:
    """Prints nested rows as CSV on stdout, with a column for every name that occurs."""
    plain = flat(rows)
    names = dict.fromkeys(name for row in plain for name in row)
    out = csv.DictWriter(sys.stdout, tuple(names), lineterminator="\n")
    out.writeheader()
    out.writerows({name: visible(value) if isinstance(value, str) else value
                   for name, value in row.items()} for row in plain)


def print_json(data: Any) -> None:
    """Prints the JSON document on stdout."""
    try:
        json.dump(data, sys.stdout, indent=1, allow_nan=False)
    except ValueError as err:
        raise InputError(
            f"a number in the result is not finite ({err}); check the machine's rates") from err
    sys.stdout.write("\n")
