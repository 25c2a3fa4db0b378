"""``hpcpar compare``: predicted against measured."""

from __future__ import annotations

import argparse

from hpcpar.api.compare import compare
from hpcpar.cli import options
from hpcpar.cli.output_files import PICTURE
from hpcpar.report.compare_table import show_rows
from hpcpar.report.tables import say


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("records", nargs="+", metavar="RUN.h5",
                        help="records that 'hpcpar run --out' wrote")
    parser.add_argument("--plot", type=PICTURE, metavar="OUT.png",
                        help="also draw the comparison")
    parser.add_argument("--all", action="store_true",
                        help="also every step, and all layers and deviations")
    options.add_layers(parser)
    options.add_external(parser)
    options.add_output(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    result = compare(*args.records, allow_external=args.allow_external)
    if args.plot:
        result.plot(args.plot)
    if args.json:
        options.print_json(result.to_json())
        return 0
    if args.csv:
        options.print_csv(result.rows())
        return 0
    show_rows(result.runs, everything=args.all, wide=args.wide)
    if args.plot:
        say(f"plot: {args.plot}")
    return 0
