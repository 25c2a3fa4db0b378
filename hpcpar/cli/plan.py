"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse
import time
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.report import answer, scaling_table, tables
from hpcpar.report.memory_note import memory_note
from hpcpar.report.prediction_tables import (
    schedule_rows,
    show_layers,
    show_predictions,
    show_schedule,
)
from hpcpar.schedule.steps import Schedule
from hpcpar.search import auto
from hpcpar.search.candidates import Candidate
from hpcpar.search.explain import Explanation, explain
from hpcpar.search.memory_advice import advice_on
from hpcpar.search.table_search import SearchResult

#: Alternatives in the table.
SHOWN = 8


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
    parser.add_argument("--force", action="store_true",
                        help="write it even where the plan does not fit in memory")
    parser.add_argument("--explain", action="store_true",
                        help="name what limits the plan, and what would help most")
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
    written = best.fits or args.force
    if args.output and written:
        plans.save(best.plan, args.output)
    explained = explain(network, best) if args.explain else None
    if args.json:
        _print_json(candidates, result, schedule, search_s, explained)
    elif args.csv:
        options.print_csv(c.prediction.to_json() for c in candidates)
    else:
        tables.show_line(answer.of_plan(best.prediction, args.epochs))
        title = f"{spec.name} on {args.ranks} ranks of {machine.name}, batch {args.batch}"
        if len(candidates) > 1:
            title += f": best of {len(candidates)} strategies, searched in {search_s:.2f} s"
        _show(title, candidates, result, schedule, explained, args.wide)
    _notes(args, candidates)
    if args.output and not written:
        raise InputError(f"{args.output} is not written: {best.strategy} does not fit in memory; "
                         "take the way above, or give --force")
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
                schedule: Schedule | None, search_s: float,
                explained: Explanation | None) -> None:
    best, *others = candidates
    data = best.prediction.to_json(steps=True) | {"search_s": search_s}
    if result is not None:
        data["search"] = result.to_json()
    data["alternatives"] = [{"strategy": c.strategy, "iteration_s": c.iteration_s, "fits": c.fits}
                            for c in others]
    if explained is not None:
        data["explain"] = explained.to_json()
    if schedule is not None:
        data["schedule"] = schedule_rows(schedule, best.prediction)
    options.print_json(data)


def _show(title: str, candidates: list[Candidate], result: SearchResult | None,
          schedule: Schedule | None, explained: Explanation | None, wide: bool) -> None:
    predictions = [c.prediction for c in candidates[:SHOWN]]
    if explained is not None:
        scaling_table.show_explanation(predictions[0], explained, wide)
    show_predictions(title, predictions, wide, candidates[0].local_statistics_s)
    show_layers(predictions[0], wide)
    if result is not None:
        tables.show_line(_search_line(result))
    if schedule is not None:
        show_schedule(schedule, predictions[0], wide)


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


def _notes(args: argparse.Namespace, candidates: list[Candidate]) -> None:
    """Remarks on a plan that does not fit, or cuts nothing."""
    chosen = candidates[0]
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    advice = advice_on(candidates)
    if advice is not None and not args.explain:
        tables.say(f"note: {memory_note(advice, taken=chosen.fits)}")
    if chosen.parts > args.batch:
        tables.say(f"note: layers that cut a batch of {args.batch} into {chosen.parts} parts leave "
                   "ranks without samples")
    configs = chosen.plan.configs.values()
    if args.ranks > 1 and all(c.parts == 1 and c.first == 0 for c in configs):
        tables.say("note: no layer is cut: a single rank would take as long")
    if args.output and (chosen.fits or args.force):
        tables.say(f"wrote {args.output}")
