"""``hpcpar compare``: predicted against measured."""

from __future__ import annotations

import argparse

from hpcpar.cli import options
from hpcpar.report.compare import compare, to_json
from hpcpar.report.compare_table import csv_rows, show_rows
from hpcpar.report.tables import say
from hpcpar.train.record import read


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("records", nargs="+", metavar="RUN.h5",
                        help="records that 'hpcpar run --out' wrote")
    parser.add_argument("--plot", metavar="OUT.png", help="also draw the comparison")
    parser.add_argument("--all", action="store_true",
                        help="also every step, and all layers and deviations")
    options.add_output(parser)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    rows = compare(read(path) for path in args.records)
    if args.plot:
        from hpcpar.report.compare_plot import plot

        plot(rows, args.plot)
    if args.json:
        options.print_json(to_json(rows))
        return 0
    if args.csv:
        options.print_csv(csv_rows(rows))
        return 0
    show_rows(rows, everything=args.all, wide=args.wide)
    if args.plot:
        say(f"plot: {args.plot}")
    return 0
