"""``hpcpar plan``: the best plan, or a named strategy's, with its prediction."""

from __future__ import annotations

import argparse

from hpcpar.api.checks import jitters
from hpcpar.api.plan import PlanResult, plan
from hpcpar.cli import options
from hpcpar.cli.output_files import PLAN
from hpcpar.plan.plan import Overlap
from hpcpar.plan.strategy import STRATEGIES
from hpcpar.report import scaling_table, tables
from hpcpar.report.memory_note import memory_note
from hpcpar.report.prediction_tables import (
    say_limits,
    show_layers,
    show_predictions,
    show_schedule,
)
from hpcpar.search.candidates import SHOWN
from hpcpar.search.table_search import SearchResult


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_network(parser)
    options.add_machine(parser)
    parser.add_argument("--ranks", type=options.ranks, required=True, metavar="P",
                        help="number of ranks")
    parser.add_argument("--batch", type=options.positive, required=True, metavar="B",
                        help="samples of a mini-batch, over all ranks")
    parser.add_argument(
        "--strategy", metavar="S",
        help="auto = the fastest that was found to fit; "
        + "".join(f"{entry.form} = {entry.help}; " for entry in STRATEGIES.values()
                  ).replace("%", "%%")
        + "'/outer' behind it puts model groups across nodes (default %(default)s)",
    )
    parser.add_argument("--robust", type=jitters, metavar="SHARE|measured",
                        help="simulate the plans within 2%% of the fastest with this jitter of "
                        "compute steps, as in 0.05 (see hpcpar simulate --jitter), and take the "
                        "one whose 95th percentile is least")
    options.add_planning(parser)
    options.add_output(parser)
    parser.add_argument("-o", "--output", type=PLAN, metavar="plan.json",
                        help="write the plan file")
    parser.add_argument("--force", action="store_true",
                        help="write it even where the plan does not fit in memory")
    parser.add_argument("--explain", action="store_true",
                        help="name what limits the plan, and what would help most")
    parser.add_argument("--show-schedule", action="store_true",
                        help="list every step of an iteration")
    options.add_defaults(parser, plan)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    result = plan(**options.arguments(args, plan))
    write = bool(args.output) and (result.best.fits or args.force)
    if write:
        result.save(args.output, args.force)
    if args.json:
        options.print_json(result.to_json(args.show_schedule, args.explain))
    elif args.csv:
        options.print_csv(result.rows())
    else:
        if args.explain:
            scaling_table.show_explanation(result.prediction, result.explanation, args.wide)
        _show(result, args.show_schedule, args.wide)
    _notes(args, result)
    if write:
        tables.say(f"wrote {args.output}")
    elif args.output:
        result.save(args.output)  # refused, below the note that names the way
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
    if result.robust:
        tables.show("plans within 2% of the fastest, simulated with jitter",
                    ("strategy", "predicted", "95th percentile"),
                    [(c.strategy, tables.seconds(c.iteration_s), tables.seconds(slow_s))
                     for c, slow_s in result.robust], wide=wide)
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


def _optimality(result: PlanResult) -> str:
    """The known distance from the fastest plan, where communication overlaps."""
    bound_s = 0.0 if result.search is None else result.search.overlap_bound_s
    if not bound_s:
        return "with overlap the choice is a local optimum: that no plan is faster is not proved"
    gap = result.best.iteration_s / bound_s - 1
    return (f"with overlap the choice is a local optimum: no layer-wise plan takes less than "
            f"{tables.seconds(bound_s)}, which it exceeds by {gap:.1%}")


def _notes(args: argparse.Namespace, result: PlanResult) -> None:
    """Remarks on a plan that does not fit, leaves ranks idle, or cuts nothing."""
    chosen = result.best
    overlaps = chosen.plan.overlap is not Overlap.NONE
    if overlaps and (len(result.candidates) > 1 or result.search is not None):
        tables.say(f"note: {_optimality(result)}")
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    if result.advice is not None and not args.explain:
        tables.say(f"note: {memory_note(result.advice, taken=chosen.fits)}")
    say_limits([result.prediction])
    configs = chosen.plan.configs.values()
    if args.ranks > 1 and all(c.parts == 1 and c.first == 0 for c in configs):
        tables.say("note: no layer is cut: a single rank would take as long")
