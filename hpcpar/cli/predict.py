"""``hpcpar predict``: price plans without searching, for several numbers of ranks and strategies."""

from __future__ import annotations

import argparse
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.price import Prediction, price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.report import plots, tables
from hpcpar.search import auto


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("predict", help="price plans without running them: tables and bar charts", allow_abbrev=False)
    parser.add_argument("--plan", metavar="plan.json", help="price this plan file (instead of --network, --ranks, --batch, --strategy)")
    options.add_network(parser, required=False)
    parser.add_argument("--machine", metavar="NAME|FILE", help="preset or machine file (default: the plan file's, else local)")
    parser.add_argument("--ranks", type=options.positives, metavar="P,P,...", help="numbers of ranks")
    parser.add_argument("--batch", type=options.positive, metavar="B", help="samples of a mini-batch, over all ranks")
    parser.add_argument("--strategy", default="data", metavar="S,S,...", help="strategies; 'grid:*' stands for every grid, 'auto' for the "
                        "fastest that fits (default data)")
    options.add_planning(parser)
    parser.add_argument("--plot", metavar="FILE.png", help="write a bar chart, one panel for each number of ranks")


def main(args: argparse.Namespace) -> int:
    chosen = options.planning(args)
    skipped: list[dict[str, Any]] = []
    data: dict[int, Prediction] = {}
    if args.plan:
        predictions = [_of_plan(args)]
    else:
        predictions = _of_options(args, chosen, skipped, data)
    if args.json:
        many = len(predictions) != 1 or skipped
        several = {"predictions": [p.to_json() for p in predictions], "skipped": skipped}
        options.print_json(several if many else predictions[0].to_json(steps=True))
    elif predictions:
        first = predictions[0]
        tables.show_predictions(f"{first.network} on {first.machine}, batch {first.batch}, overlap {first.overlap}", predictions)
        tables.say_source(predictions)
        if len(predictions) == 1:
            tables.show_layers(first)
    for entry in skipped:
        tables.say(f"note: skipped {entry['strategy']} on {entry['ranks']} ranks: {entry['reason']}")
    if args.plot:
        plots.bars(predictions, data, args.plot)
        tables.say(f"wrote {args.plot}")
    return 0


def _of_plan(args: argparse.Namespace) -> Prediction:
    for name in ("network", "input", "classes", "ranks", "batch", "gather", "overlap"):
        if getattr(args, name) is not None:
            raise InputError(f"--plan and --{name} exclude each other: the plan file fixes it")
    plan = plans.load(args.plan)
    machine = files.load(args.machine) if args.machine else files.from_dict(plan.machine, f"the machine in plan file {args.plan}")
    return price(plan.network.build(), plan, machine, samples=options.samples(args, plan.network), accounting=args.accounting)


def _of_options(
    args: argparse.Namespace, chosen: dict[str, Any], skipped: list[dict[str, Any]], data: dict[int, Prediction]
) -> list[Prediction]:
    for name in ("network", "ranks", "batch"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing; give --network, --ranks and --batch, or --plan plan.json")
    spec = options.network_spec(args.network, args.input, args.classes)
    network, machine = spec.build(), files.load(args.machine or "local")
    chosen["samples"] = options.samples(args, spec)
    out: list[Prediction] = []
    for ranks in args.ranks:
        for pattern in args.strategy.split(","):
            if pattern.strip() == "auto":
                out.append(auto.best(network, spec, ranks, args.batch, machine, **chosen)[0].prediction)
                continue
            for strategy in auto.expand(pattern.strip(), ranks):
                _one(network, spec, strategy, ranks, args.batch, machine, chosen, out, skipped)
        if args.plot and ranks <= args.batch:
            data[ranks] = auto.price_named(network, spec, "data", ranks, args.batch, machine, **chosen).prediction
    return out


def _one(
    network: Network, spec: plans.NetworkSpec, strategy: str, ranks: int, batch: int, machine: Machine,
    chosen: dict[str, Any], out: list[Prediction], skipped: list[dict[str, Any]],
) -> None:
    parts = auto.sample_parts(plans.make_plan(spec, strategy, ranks, batch, gather=chosen["gather"]))
    if parts > batch:
        reason = f"a batch of {batch} cannot be cut into {parts} parts"
        skipped.append({"strategy": strategy, "ranks": ranks, "reason": reason})
        return
    out.append(auto.price_named(network, spec, strategy, ranks, batch, machine, **chosen).prediction)
