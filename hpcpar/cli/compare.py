"""``hpcpar compare``: compares predicted with measured times."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.compare import compare
from hpcpar.api.options import ModuleOptions
from hpcpar.cli.options import ExternalOptions, ResultOptions
from hpcpar.options.checks import path
from hpcpar.options.fields import flag, option, required
from hpcpar.options.output_files import PICTURE
from hpcpar.report.tables import say
from hpcpar.report.tables.compare_table import show_rows


@dataclass(frozen=True, kw_only=True)
class CompareCommand(ResultOptions, ModuleOptions, ExternalOptions, section="output"):
    example = "hpcpar compare run.h5 --plot compare.png"
    records: tuple[str, ...] = required(
        path, "records from hpcpar run --out", "RUN.h5", names=("records",), nargs="+")
    plot: str = option("", PICTURE, "draw the comparison", "OUT.png")
    all: bool = flag("show every step, layer and deviation")


def main(args: CompareCommand) -> int:
    result = compare(*args.records, allow_external=args.allow_external)
    if args.plot:
        result.plot(args.plot)
    args.show(result.to_json, result.rows, lambda: show_rows(
        result.runs, everything=args.all, wide=args.wide))
    if args.plot:
        say(f"wrote {args.plot}")
    return 0
