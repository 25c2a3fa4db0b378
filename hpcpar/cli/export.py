"""``hpcpar export``: writes the programs of a plan's ranks for other simulators."""

from __future__ import annotations

import argparse
import os

from hpcpar.cli import options
from hpcpar.cli.output_files import PROGRAMS
from hpcpar.errors import InputError
from hpcpar.plan import plan as plans
from hpcpar.report.exports import FORMATS
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say
from hpcpar.simulation.programs import Programs
from hpcpar.simulation.simulate import Simulator


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--plan", required=True, metavar="plan.json", help="the plan to export")
    options.add_layers(parser)
    parser.add_argument("--format", required=True, **options.one_of(FORMATS),
                        help="chakra (a folder; ASTRA-sim), goal (a file; LogGOPSim, ATLAHS), "
                        "simgrid (a folder of time-independent traces; SMPI)")
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="preset or machine file (default: the plan file's)")
    parser.add_argument("-o", "--output", required=True, type=PROGRAMS, metavar="PATH",
                        help="the file or folder to write")
    parser.add_argument("--force", action="store_true", help="replace it where it exists")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if os.path.lexists(args.output) and not args.force:
        raise InputError(f"{args.output} exists; choose another name, or give --force")
    plan = plans.load(args.plan)
    machine = options.machine_of(args.machine, plan, args.plan)
    with ProgressBar() as lines:
        programs = Programs(Simulator(plan.network.build(), plan, machine),
                            lambda rank: lines.show(rank, int(plan.ranks), "ranks"))
        FORMATS[args.format](programs, args.output)
    say(f"wrote {args.output}: the programs of {programs.ranks:,} ranks")
    return 0
