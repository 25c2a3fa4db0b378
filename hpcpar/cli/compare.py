"""``hpcpar compare``: compares predicted with measured times."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.compare import CompareResult, compare
from hpcpar.api.options import ModuleOptions
from hpcpar.cli.options import ExternalOptions, ResultOptions
from hpcpar.options.checks import path
from hpcpar.options.fields import flag, option, required
from hpcpar.options.output_files import PICTURE
from hpcpar.report.calls import calls_of
from hpcpar.report.tables import say
from hpcpar.report.tables.compare_table import show_calls, show_rows


@dataclass(frozen=True, kw_only=True)
class CompareCommand(ResultOptions, ModuleOptions, ExternalOptions, section="output"):
    example = "hpcpar compare run.h5 --plot compare.png"
    records: tuple[str, ...] = required(
        path, "records from hpcpar run --out", "RUN.h5", names=("records",), nargs="+")
    plot: str = option("", PICTURE, "draw the comparison", "OUT.png")
    calls: bool = flag("show every communication step's calls against its predicted time, with the "
                       "outliers")
    plot_calls: str = option("", PICTURE, "draw all calls over the size of their messages",
                             "OUT.png")
    all: bool = flag("show every step, layer and deviation")


def main(args: CompareCommand) -> int:
    result = compare(*args.records, allow_external=args.allow_external)
    if args.plot:
        result.plot(args.plot)
    if args.plot_calls:
        result.plot_calls(args.plot_calls)
    args.show(lambda: result.to_json(args.calls), lambda: result.rows(args.calls),
              lambda: _show(result, args))
    for drawn in filter(None, (args.plot, args.plot_calls)):
        say(f"wrote {drawn}")
    return 0


def _show(result: CompareResult, args: CompareCommand) -> None:
    show_rows(result.runs, everything=args.all, wide=args.wide)
    for row in result.runs if args.calls else ():
        show_calls(row.name, *calls_of(row.record), everything=args.all, wide=args.wide)
