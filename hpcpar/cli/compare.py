"""``hpcpar compare``: predicted against measured."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from hpcpar.report.compare import compare, to_json
from hpcpar.report.compare_table import show
from hpcpar.train.record import read


def add(subparsers: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "compare", help="predicted against measured, per phase, layer and step",
        description="Compare the prediction in the records of runs with the measured times.",
    )
    parser.add_argument("records", nargs="+", metavar="RUN.h5",
                        help="records that 'hpcpar run --out' wrote")
    parser.add_argument("--plot", metavar="OUT.png", help="also draw the comparison")
    parser.add_argument("--all", action="store_true",
                        help="also every step, and all layers and deviations")
    parser.add_argument("--json", action="store_true",
                        help="one JSON document on stdout instead of tables")
    parser.set_defaults(run=main)


def main(args: argparse.Namespace) -> int:
    """Run the command; gives its exit status."""
    rows = compare(read(path) for path in args.records)
    if args.plot:
        from hpcpar.report.compare_plot import plot

        plot(rows, args.plot)
    if args.json:
        print(json.dumps(to_json(rows), indent=1))
        return 0
    show(rows, everything=args.all)
    if args.plot:
        Console(stderr=True).print(f"plot: {args.plot}", highlight=False, soft_wrap=True)
    return 0
