"""``hpcpar simulate``: plays a plan on all of its ranks, message by message, in virtual time."""

from __future__ import annotations

import argparse

from hpcpar.api.checks import factors, jitters, loads
from hpcpar.api.simulate import REPEATS, simulate
from hpcpar.cli import options
from hpcpar.cli.output_files import PICTURE, RECORD
from hpcpar.report.progress import ProgressBar
from hpcpar.report.simulated import show_simulated
from hpcpar.report.tables import say


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--plan", required=True, metavar="plan.json", help="the plan to play")
    options.add_layers(parser)
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="preset or machine file (default: the plan file's)")
    parser.add_argument("--jitter", type=jitters, metavar="SHARE|measured",
                        help="standard deviation of each compute step's time over its mean, as in "
                        "0.05: drawn for every step, rank and iteration (default 0); 'measured' "
                        "is that of the machine's calibration")
    parser.add_argument("--slow", type=factors, metavar="UNIT=FACTOR,...",
                        help="ranks that compute slower, as in rank5=2 or, by a level of the "
                        "machine, node3=1.3")
    parser.add_argument("--load", type=loads, metavar="LEVEL=SHARE,...",
                        help="share of a level's bandwidth that other jobs take, as in system=0.2")
    parser.add_argument("--repeat", type=options.positive, metavar="N",
                        help=f"iterations, with --jitter (default {REPEATS})")
    parser.add_argument("--seed", type=options.seed, help="fixes the jitter")
    options.add_output(parser)
    parser.add_argument("--plot", type=PICTURE, metavar="FILE.png",
                        help="draw the iterations, and what every rank does")
    parser.add_argument("-o", "--out", type=RECORD, metavar="sim.h5",
                        help="write the record, for hpcpar compare and hpcpar trace")
    options.add_defaults(parser, simulate)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if args.out:
        RECORD.check_content(args.out)
    lines = ProgressBar()
    with lines:
        result = simulate(**options.arguments(args, simulate) | {
            "progress": lambda done, total: lines.show(done, total, "iterations")})
    if args.json:
        options.print_json(result.to_json())
    elif args.csv:
        options.print_csv(result.rows())
    else:
        show_simulated(result.simulated, args.wide)
    if args.plot:
        result.plot(args.plot)
        say(f"wrote {args.plot}")
    if args.out:
        result.save(args.out)
        say(f"wrote {args.out}: a record for hpcpar compare and hpcpar trace")
    return 0
