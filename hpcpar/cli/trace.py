"""``hpcpar trace``: writes measured and simulated timelines for a trace viewer."""

from __future__ import annotations

import argparse

from hpcpar.cli import options
from hpcpar.cli.output_files import TIMELINE
from hpcpar.errors import InputError
from hpcpar.plan import plan as plans
from hpcpar.report import perfetto
from hpcpar.report.tables import say
from hpcpar.report.trace_events import Event, write
from hpcpar.simulation.price_plan import price


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Write the timelines of a run's ranks on one clock, beside the simulated one, as trace "
        "events; or with --plan the simulated one alone. Open the file at https://ui.perfetto.dev.")
    parser.add_argument("record", nargs="?", metavar="RUN.h5",
                        help="a record that 'hpcpar run --out' or 'hpcpar simulate --out' wrote")
    parser.add_argument("--plan", metavar="plan.json",
                        help="the simulated timeline of this plan, without a run")
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="with --plan: preset or machine file (default: the plan's)")
    parser.add_argument(
        "--iterations", type=options.positive, default=4, metavar="N",
        help="measured iterations, the last of those that the record keeps (default 4)",
    )
    parser.add_argument("--ranks", type=options.positive, metavar="N",
                        help="measured ranks, from rank 0 on (default: all)")
    options.add_layers(parser)
    options.add_external(parser)
    parser.add_argument("-o", "--out", required=True, type=TIMELINE, metavar="trace.json",
                        help="the file to write")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if (args.record is None) == (args.plan is None):
        raise InputError("give either the record of a run (hpcpar trace run.h5 -o trace.json) or "
                         "--plan plan.json")
    if args.record is not None and args.machine:
        raise InputError("--machine goes with --plan: a record has the prediction for the "
                         "machine that it was made for")
    simulated: perfetto.Simulated
    measured: list[Event] = []
    if args.record is not None:
        from hpcpar.report.perfetto_measured import measured as measured_events
        from hpcpar.report.recorded_prediction import recorded_prediction
        from hpcpar.train.record import load_record

        record = load_record(args.record, args.allow_external)
        simulated = recorded_prediction(record)
        measured = measured_events(record, 2, args.iterations, args.ranks)
    else:
        plan = plans.load(args.plan)
        machine = options.machine_of(args.machine, plan, args.plan)
        simulated = price(plan.network.build(), plan, machine)
    name = f"simulated: {perfetto.title(simulated)}"
    write([*perfetto.events(1, simulated, name), *measured], args.out)
    sides = "simulated and measured" if measured else "simulated"
    say(f"wrote {args.out} ({sides}); open it at https://ui.perfetto.dev")
    return 0
