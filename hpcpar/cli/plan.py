"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse
import time
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.report import tables
from hpcpar.schedule.steps import Schedule
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.layerwise import least_memory
from hpcpar.search.table_search import SearchResult

#: Alternatives in the table.
SHOWN = 8
#: Numbers of recomputed segments that are tried where a plan does not fit.
SEGMENTS = (2, 4, 8, 16, 32)


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_network(parser)
    options.add_machine(parser)
    parser.add_argument("--ranks", type=options.positive, required=True, metavar="P",
                        help="number of ranks")
    parser.add_argument("--batch", type=options.positive, required=True, metavar="B",
                        help="samples of a mini-batch, over all ranks")
    parser.add_argument(
        "--strategy", default="auto", metavar="S",
        help="auto (the fastest that fits, of all that this version can run), "
        "layerwise (OptCNN's search), data, filter, channel, spatial, pipeline[:SxN], owt, owt-b, "
        "owt-c, grid:PRxPC, grid-fc:PRxPC, domain:PRxPC, df:P1xP2, ds:P1xP2; '/outer' behind it "
        "puts model groups across nodes (default auto)",
    )
    options.add_planning(parser)
    parser.add_argument("-o", "--output", metavar="plan.json", help="write the plan file")
    parser.add_argument("--show-schedule", action="store_true",
                        help="list every step of an iteration")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    spec = options.network_spec(args.network, args.input, args.classes)
    network = spec.build()
    chosen = options.planning(args) | {"samples": options.samples(args, spec)}
    machine = files.load(args.machine)
    begin = time.perf_counter()
    candidates, result = _candidates(args, network, spec, machine, chosen)
    search_s = time.perf_counter() - begin
    best = candidates[0]
    schedule = schedule_for(network, best.plan) if args.show_schedule else None
    if args.output:
        plans.save(best.plan, args.output)
    if args.json:
        _print_json(candidates, result, schedule, search_s)
    else:
        title = f"{spec.name} on {args.ranks} ranks of {machine.name}, batch {args.batch}"
        if len(candidates) > 1:
            title += f": best of {len(candidates)} strategies, searched in {search_s:.2f} s"
        _show(title, candidates, result, schedule)
    _notes(args, best)
    return 0


def _candidates(args: argparse.Namespace, network: Network, spec: plans.NetworkSpec,
                machine: Machine, chosen: dict[str, Any]
                ) -> tuple[list[Candidate], SearchResult | None]:
    """The candidates, the best first, and the result of a layer-wise search that was asked for."""
    if args.strategy not in ("auto", "layerwise"):
        return [auto.price_named(network, spec, args.strategy, args.ranks, args.batch, machine,
                                 **chosen)], None
    layerwise = args.strategy == "layerwise"
    found = auto.best(network, spec, args.ranks, args.batch, machine,
                      layers=not layerwise, **chosen)
    if not layerwise:
        return found, None
    best, result = auto.named_or_layerwise(network, spec, args.ranks, args.batch, machine,
                                           known=found, **chosen)
    return [best, *found], result


def _print_json(candidates: list[Candidate], result: SearchResult | None,
                schedule: Schedule | None, search_s: float) -> None:
    best, *others = candidates
    data = best.prediction.to_json(steps=True) | {"search_s": search_s}
    if result is not None:
        data["search"] = result.to_json()
    data["alternatives"] = [{"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits}
                            for c in others]
    if schedule is not None:
        data["schedule"] = tables.schedule_rows(schedule, best.prediction)
    options.print_json(data)


def _show(title: str, candidates: list[Candidate], result: SearchResult | None,
          schedule: Schedule | None) -> None:
    predictions = [c.prediction for c in candidates[:SHOWN]]
    tables.show_predictions(title, predictions)
    tables.show_layers(predictions[0])
    if result is not None:
        tables.say(_search_line(result))
    if schedule is not None:
        tables.show_schedule(schedule, predictions[0])


def _search_line(found: SearchResult) -> str:
    e = found.eliminations
    line = (f"layer-wise search: {found.configurations} configurations, tables for {found.kept} of "
            f"them; {e.nodes} node and {e.edges} edge eliminations leave K = {e.kept}; tables "
            f"{found.table_s:.3f} s, search {found.search_s:.3f} s; sum of an iteration "
            f"{tables.seconds(found.objective_s)}")
    if found.exact:
        return line
    gap = found.objective_s / max(found.bound_s, 1e-30) - 1
    return f"{line}; not proved the least: at most {gap:.2%} above it"


def _notes(args: argparse.Namespace, chosen: Candidate) -> None:
    """Remarks on a plan that does not fit, or cuts nothing."""
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    if not chosen.prediction.fits:
        _memory_notes(chosen)
    if chosen.parts > args.batch:
        tables.say(f"note: layers that cut a batch of {args.batch} into {chosen.parts} parts leave "
                   "ranks without samples")
    configs = chosen.plan.configs.values()
    if args.ranks > 1 and all(c.parts == 1 and c.first == 0 for c in configs):
        tables.say("note: no layer is cut: a single rank would take as long")
    if args.output:
        tables.say(f"wrote {args.output}")


def _memory_notes(chosen: Candidate) -> None:
    p = chosen.prediction
    least, enough = least_memory(chosen.task)
    if least <= p.memory_limit_bytes:
        advice = "a layer-wise plan of less memory fits: use --strategy layerwise"
    elif enough:
        advice = f"{enough} ranks would do"
    else:
        advice = "no number of ranks up to 16 times as many would do: use a smaller batch"
    tables.say(f"note: {p.strategy} needs {tables.amount(p.memory_bytes)} a rank, the machine has "
               f"{tables.amount(p.memory_limit_bytes)}; the least that any plan was found to need "
               f"is {tables.amount(least)}; {advice}")
    for count in SEGMENTS:
        again = chosen.recomputing(count)
        if again.fits:
            tables.say(f"note: with --recompute {count} it needs "
                       f"{tables.amount(again.memory_bytes)}, which fits, and takes "
                       f"{tables.seconds(again.iteration_s)} instead of "
                       f"{tables.seconds(p.iteration_s)}")
            break
