"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse
import time
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.choose import schedule_for
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.report import tables
from hpcpar.search import auto

#: Alternatives in the table.
SHOWN = 8


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan", help="find the best plan for a network on a machine, or make a named strategy's", allow_abbrev=False
    )
    options.add_network(parser)
    parser.add_argument("--machine", default="local", metavar="NAME|FILE", help="preset or machine file (default local)")
    parser.add_argument("--ranks", type=options.positive, required=True, metavar="P", help="number of ranks")
    parser.add_argument("--batch", type=options.positive, required=True, metavar="B", help="samples of a mini-batch, over all ranks")
    parser.add_argument("--strategy", default="auto", metavar="S", help="auto (the fastest of all that fits), data, filter, spatial, owt, "
                        "grid:PRxPC, grid-fc:PRxPC, domain:PRxPC, df:P1xP2, ds:P1xP2 (default auto)")
    options.add_planning(parser)
    parser.add_argument("-o", "--output", metavar="plan.json", help="write the plan file")
    parser.add_argument("--show-schedule", action="store_true", help="list every step of an iteration")


def main(args: argparse.Namespace) -> int:
    chosen = options.planning(args)
    spec = options.network_spec(args.network, args.input, args.classes)
    network = spec.build()
    machine = files.load(args.machine)
    chosen["samples"] = options.samples(args, spec)
    begin = time.perf_counter()
    if args.strategy == "auto":
        found = auto.best(network, spec, args.ranks, args.batch, machine, **chosen)
    else:
        found = [auto.price_named(network, spec, args.strategy, args.ranks, args.batch, machine, **chosen)]
    search_s = time.perf_counter() - begin
    plan, prediction = found[0].plan, found[0].prediction
    schedule = schedule_for(network, plan) if args.show_schedule else None
    if args.output:
        plans.save(plan, args.output)
    if args.json:
        data = prediction.to_json(steps=True) | {"search_s": search_s}
        data["alternatives"] = [
            {"strategy": c.prediction.strategy, "iteration_s": c.prediction.iteration_s, "fits": c.prediction.fits} for c in found[1:]
        ]
        if schedule is not None:
            data["schedule"] = tables.schedule_rows(schedule, prediction)
        options.print_json(data)
    else:
        title = f"{spec.name} on {args.ranks} ranks of {machine.name}, batch {args.batch}"
        if len(found) > 1:
            title += f": best of {len(found)} strategies, searched in {search_s:.2f} s"
        tables.show_predictions(title, [c.prediction for c in found[:SHOWN]])
        tables.say_source([c.prediction for c in found])
        tables.show_layers(prediction)
        if schedule is not None:
            tables.show_schedule(schedule, prediction)
    _notes(args, found[0])
    return 0


def _notes(args: argparse.Namespace, chosen: auto.Candidate) -> None:
    p = chosen.prediction
    if not p.fits:
        tables.say(f"note: {p.strategy} needs {tables.amount(p.memory_bytes)} a rank, the machine has "
                   f"{tables.amount(p.memory_limit_bytes)}; use more ranks or a smaller batch")
    parts = auto.sample_parts(chosen.plan)
    if parts > args.batch:
        tables.say(f"note: a batch of {args.batch} cut into {parts} parts leaves ranks without samples; use a larger batch or a grid")
    if args.output:
        tables.say(f"wrote {args.output}")
