"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse

from hpcpar.api.plan import SHOWN, PlanResult, plan
from hpcpar.cli import options
from hpcpar.report import tables
from hpcpar.report.prediction_tables import show_layers, show_predictions, show_schedule
from hpcpar.search.candidates import Candidate
from hpcpar.search.layerwise import least_memory
from hpcpar.search.table_search import SearchResult

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
        "--strategy", metavar="S",
        help="auto (the fastest that fits, of all that this version can run), "
        "layerwise (OptCNN's search), data, filter, channel, spatial, pipeline[:SxN], owt, owt-b, "
        "owt-c, grid:PRxPC, grid-fc:PRxPC, domain:PRxPC, df:P1xP2, ds:P1xP2; '/outer' behind it "
        "puts model groups across nodes (default %(default)s)",
    )
    options.add_planning(parser)
    options.add_output(parser)
    parser.add_argument("-o", "--output", metavar="plan.json", help="write the plan file")
    parser.add_argument("--show-schedule", action="store_true",
                        help="list every step of an iteration")
    options.add_defaults(parser, plan)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    result = plan(**options.arguments(args, plan))
    if args.output:
        result.save(args.output)
    if args.json:
        options.print_json(result.to_json(schedule=args.show_schedule))
    elif args.csv:
        options.print_csv(result.rows())
    else:
        _show(result, args.show_schedule, args.wide)
    _notes(args, result.best)
    return 0


def _show(result: PlanResult, schedule: bool, wide: bool) -> None:
    predictions = [c.prediction for c in result.candidates[:SHOWN]]
    best, count = predictions[0], len(result.candidates)
    title = f"{best.network} on {best.ranks} ranks of {best.machine}, batch {best.batch}"
    if count > 1:
        title += f": best of {count} strategies, searched in {result.search_s:.2f} s"
    tables.show_line(result.answer)
    show_predictions(title, predictions, wide, result.best)
    show_layers(best, wide)
    if result.search is not None:
        tables.show_line(_search_line(result.search))
    if schedule:
        show_schedule(result.schedule, best, wide)


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
    """Remarks on a plan that does not fit, leaves ranks idle, or cuts nothing."""
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    if not chosen.prediction.fits:
        _memory_notes(chosen)
    if chosen.parts > args.batch:
        tables.say(f"note: a batch of {args.batch} cut into {chosen.parts} parts leaves ranks "
                   "without samples; use a larger batch or a grid")
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
