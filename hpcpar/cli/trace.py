"""``hpcpar trace``: writes measured and simulated timelines for a trace viewer."""

from __future__ import annotations

import argparse

from hpcpar.cli import options
from hpcpar.cost.price_plan import price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.report import events, perfetto, tables


def add(subparsers: argparse._SubParsersAction) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "trace", help="timelines of a run, simulated and measured, for ui.perfetto.dev",
        description="Write the timelines of a run's ranks on one clock, beside the simulated one, "
        "as trace "
        "events; or with --plan the simulated one alone. Open the file at https://ui.perfetto.dev.",
    )
    parser.add_argument("record", nargs="?", metavar="RUN.h5",
                        help="a record that 'hpcpar run --out' wrote")
    parser.add_argument("--plan", metavar="plan.json",
                        help="the simulated timeline of this plan, without a run")
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="with --plan: preset or machine file (default: the plan's)")
    parser.add_argument(
        "--iterations", type=options.positive, default=4, metavar="N",
        help="measured iterations, the last of those that the record keeps (default 4)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="trace.json",
                        help="the file to write")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if (args.record is None) == (args.plan is None):
        raise InputError("give either the record of a run (hpcpar trace run.h5 -o trace.json) or "
                         "--plan plan.json")
    if args.record is not None:
        if args.machine:
            raise InputError("--machine goes with --plan: a record has the prediction for the "
                             "machine that it was made for")
        return _record(args)
    plan = plans.load(args.plan)
    if args.machine:
        machine = files.load(args.machine)
    else:
        machine = files.from_dict(plan.machine, f"the machine in plan file {args.plan}")
    prediction = price(plan.network.build(), plan, machine)
    events.save(perfetto.events(1, prediction, f"simulated: {perfetto.title(prediction)}"),
                args.out)
    tables.say(f"wrote {args.out} (simulated); open it at https://ui.perfetto.dev")
    return 0


def _record(args: argparse.Namespace) -> int:
    from hpcpar.report.measured_trace import measured
    from hpcpar.report.recorded import simulated
    from hpcpar.train.record import read

    record = read(args.record)
    timeline, found = simulated(record), measured(record, 2, args.iterations)
    trace = list(found)
    if timeline:
        trace[:0] = perfetto.events(1, timeline, f"simulated: {perfetto.title(timeline)}")
    if not trace:
        raise InputError(f"run record {args.record} has neither times at which steps began nor a "
                         "simulated timeline; run again with this hpcpar")
    events.save(trace, args.out)
    sides = " and ".join(side for side, there in (("simulated", timeline), ("measured", found))
                         if there)
    tables.say(f"wrote {args.out} ({sides}); open it at https://ui.perfetto.dev")
    for there, what in ((timeline, "the simulated timeline"),
                        (found, "times at which steps began")):
        if not there:
            tables.say(f"note: the record lacks {what}")
    return 0
