"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse
import time
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.report import tables
from hpcpar.schedule.runnable import runs
from hpcpar.search import auto
from hpcpar.search.layerwise import Found

#: Alternatives in the table.
SHOWN = 8
#: Segments that are tried, for computing activations again, where a plan does not fit.
SEGMENTS = (2, 4, 8, 16, 32)


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan", help="find the best plan for a network on a machine, or make a named strategy's", allow_abbrev=False
    )
    options.add_network(parser)
    parser.add_argument("--machine", default="local", metavar="NAME|FILE",
                        help="preset or machine file (default local)")
    parser.add_argument("--ranks", type=options.positive, required=True, metavar="P",
                        help="number of ranks")
    parser.add_argument("--batch", type=options.positive, required=True, metavar="B",
                        help="samples of a mini-batch, over all ranks")
    parser.add_argument("--strategy", default="auto", metavar="S", help="auto (the fastest that fits, of all that this version can run), "
                        "layerwise (OptCNN's search), data, filter, channel, spatial, pipeline[:SxN], owt, owt-b, owt-c, grid:PRxPC, "
                        "grid-fc:PRxPC, domain:PRxPC, df:P1xP2, ds:P1xP2; '/outer' behind it puts model groups across nodes (default auto)")
    options.add_planning(parser)
    parser.add_argument("-o", "--output", metavar="plan.json", help="write the plan file")
    parser.add_argument("--show-schedule", action="store_true",
                        help="list every step of an iteration")


def main(args: argparse.Namespace) -> int:
    chosen = options.planning(args)
    spec = options.network_spec(args.network, args.input, args.classes)
    network = spec.build()
    machine = files.load(args.machine)
    chosen["samples"] = options.samples(args, spec)
    begin = time.perf_counter()
    searched: Found | None = None
    if args.strategy == "auto":
        found = auto.best(network, spec, args.ranks, args.batch, machine, accept=runs(network),
                          **chosen)
    elif args.strategy == "layerwise":
        where = (network, spec, args.ranks, args.batch, machine)
        others = auto.best(*where, accept=runs(network), layers=False, **chosen)
        chosen_one, searched = auto.named_or_layerwise(*where, known=others, **chosen)
        found = [chosen_one, *others]
    else:
        found = [auto.price_named(network, spec, args.strategy, args.ranks, args.batch, machine,
                                  **chosen)]
    search_s = time.perf_counter() - begin
    plan, prediction = found[0].plan, found[0].prediction
    schedule = schedule_for(network, plan) if args.show_schedule else None
    if args.output:
        plans.save(plan, args.output)
    if args.json:
        data = prediction.to_json(steps=True) | {"search_s": search_s}
        if searched is not None:
            data["search"] = searched.to_json()
        data["alternatives"] = [
            {"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits} for c in found[1:]
        ]
        if schedule is not None:
            data["schedule"] = tables.schedule_rows(schedule, prediction)
        options.print_json(data)
    else:
        title = f"{spec.name} on {args.ranks} ranks of {machine.name}, batch {args.batch}"
        if len(found) > 1:
            title += f": best of {len(found)} strategies, searched in {search_s:.2f} s"
        tables.show_predictions(title, [c.prediction for c in found[:SHOWN]])
        tables.say_source([c.prediction for c in found[:SHOWN]])
        tables.show_layers(prediction)
        if searched is not None:
            tables.say(_search_line(searched))
        if schedule is not None:
            tables.show_schedule(schedule, prediction)
    _notes(args, found[0])
    return 0


def _search_line(found: Found) -> str:
    e = found.eliminations
    gap = "" if found.exact else f"; not proved the least: at most {found.objective_s / max(found.bound_s, 1e-30) - 1:.2%} above it"
    return (f"layer-wise search: {found.configurations} configurations, tables for {found.kept} of them; {e.nodes} node and {e.edges} edge "
            f"eliminations leave K = {e.kept}; tables {found.table_s:.3f} s, search {found.search_s:.3f} s; sum of an iteration "
            f"{tables.seconds(found.objective_s)}{gap}")


def _notes(args: argparse.Namespace, chosen: auto.Candidate) -> None:
    p = chosen.prediction
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    if not p.fits:
        task = chosen.task
        least, enough = auto.least_memory(
            task.network, task.spec, task.ranks, task.batch, task.machine, gather=task.gather, samples=task.samples, **task.options
        )
        have = p.memory_limit_bytes
        advice = f"{enough} ranks would do" if enough else "no number of ranks up to 16 times as many would do: use a smaller batch"
        if least <= have:
            advice = "a layer-wise plan of less memory fits: use --strategy layerwise"
        tables.say(f"note: {p.strategy} needs {tables.amount(p.memory_bytes)} a rank, the machine has {tables.amount(have)}; the least "
                   f"that any plan was found to need is {tables.amount(least)}; {advice}")
        again = next((c for count in SEGMENTS if (c := chosen.recomputing(count)).fits), None)
        if again is not None:
            tables.say(f"note: with --recompute {again.plan.recompute} it needs {tables.amount(again.memory_bytes)}, which fits, "
                       f"and takes {tables.seconds(again.iteration_s)} instead of {tables.seconds(p.iteration_s)}")
    if chosen.parts > args.batch:
        tables.say(f"note: a batch of {args.batch} cut into {chosen.parts} parts leaves ranks without samples; use a larger batch "
                   "or a grid")
    if args.ranks > 1 and all(config.parts == 1 and config.first == 0
                              for config in chosen.plan.configs.values()):
        tables.say("note: no layer is cut: a single rank would take as long")
    if args.output:
        tables.say(f"wrote {args.output}")
