"""``hpcpar plan``: the best plan, or the plan of one strategy, with its prediction."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.api.plan import PlanArguments, PlanResult, find_plan
from hpcpar.cli.options import ResultOptions
from hpcpar.options.fields import OUT, flag, option
from hpcpar.options.output_files import HTML, PICTURE, PLAN
from hpcpar.plan.plan import Overlap
from hpcpar.report import tables
from hpcpar.report.tables import scaling_table
from hpcpar.report.tables.anchors import show_anchors
from hpcpar.report.tables.grid_tables import in_words, show_grids
from hpcpar.report.tables.prediction_tables import (
    say_limits,
    show_layers,
    show_predictions,
    show_schedule,
)
from hpcpar.report.tables.size_tables import show_sizes
from hpcpar.search.candidates import SHOWN
from hpcpar.search.scaling_losses import input_of_a_node
from hpcpar.search.table_search import SearchResult


@dataclass(frozen=True, kw_only=True)
class PlanCommand(ResultOptions, ModuleOptions, PlanArguments, section="output"):
    example = "hpcpar plan --network lenet5 --ranks 2 --batch 64 -o plan.json"
    out: str = option("", PLAN, "write the plan file", "plan.json", **OUT)
    force: bool = flag("write the plan even if it does not fit in memory")
    explain: bool = flag("explain what limits the plan, and which changes would help most",
                         first=True)
    plot: str = option("", PICTURE, "draw the best plans, or all grids if the strategy asks for "
                       "one", "FILE.png")
    html: str = option("", HTML, "write the answer as one page: grids, layers, timeline, memory",
                       "answer.html")
    show_schedule: bool = flag("list every step of an iteration")


def main(args: PlanCommand) -> int:
    result = find_plan(args)
    write = bool(args.out) and (result.best.fits or args.force)
    if write:
        result.save(args.out, args.force)
    args.show(lambda: result.to_json(args.show_schedule, args.explain), result.rows,
              lambda: _show(result, args))
    _notes(args, result)
    if args.plot:
        result.plot(args.plot)
        tables.say(f"wrote {args.plot}")
    if args.html:
        result.save_page(args.html, args.explain)
        tables.say(f"wrote {args.html}")
    if write:
        tables.say(f"wrote {args.out}")
    elif args.out:
        result.save(args.out)  # raises, after the note with the remedy
    return 0


def _show(result: PlanResult, args: PlanCommand) -> None:
    if args.explain:
        scaling_table.show_explanation(result.prediction, result.explanation, args.wide)
    predictions = [c.prediction for c in result.candidates[:SHOWN]]
    best, count = predictions[0], len(result.candidates)
    title = f"{best.network} on {best.ranks} ranks of {best.machine}, batch {best.batch}"
    if count > 1:
        title += f": best of {count} strategies, searched in {result.search_s:.2f} s"
    tables.show_line(result.answer)
    if (result.on_grid or count > 1) and (
            words := in_words(result.best.task.network, result.plan)):
        tables.show_line(words)
    if args.data and not args.explain:
        tables.show_line(f"reading {args.data}: {input_of_a_node(result.best).remark}")
    show_predictions(title, predictions, args.wide, ratios=result.ratios)
    if result.best.task.machine.anchored is not None:
        show_anchors(result.best.task.machine.anchored, (), args.wide)
    if (result.on_grid or args.explain) and result.grid is not None:
        show_grids(result.grid, args.wide)
    show_layers(best, args.wide)
    if result.search is not None:
        tables.show_line(_search_line(result.search))
    if result.robust:
        tables.show("plans within 2% of the fastest, simulated with jitter",
                    ("strategy", "predicted", "95th percentile"),
                    [(c.strategy, tables.seconds(c.iteration_s), tables.seconds(slow_s))
                     for c, slow_s in result.robust], wide=args.wide)
    if result.sizes:
        show_sizes(result.sizes, args.wide)
    if args.show_schedule:
        show_schedule(result.schedule, best, args.wide)


def _search_line(found: SearchResult) -> str:
    e = found.eliminations
    line = (f"layer-wise search: {found.configurations} configurations, tables for {found.kept} of "
            f"them; {e.nodes} node and {e.edges} edge eliminations leave K = {e.kept}; tables "
            f"{found.table_s:.3f} s, search {found.search_s:.3f} s; sum of an iteration "
            f"{tables.seconds(found.objective_s)}")
    if found.exact:
        return line
    gap = found.objective_s / max(found.bound_s, 1e-30) - 1
    return f"{line}; at most {gap:.2%} above the optimum"


def _optimality(result: PlanResult) -> str:
    """How far a plan with overlap may be from the fastest."""
    bound_s = 0.0 if result.search is None else result.search.overlap_bound_s
    if not bound_s:
        return "with overlap, the choice is a local optimum: a faster plan may exist"
    gap = result.best.iteration_s / bound_s - 1
    return (f"with overlap, the choice is a local optimum: no layer-wise plan takes less than "
            f"{tables.seconds(bound_s)}, and this one takes {gap:.1%} more")


def _notes(args: PlanCommand, result: PlanResult) -> None:
    """Prints notes on a plan that does not fit, leaves ranks idle, or cuts nothing."""
    chosen = result.best
    overlaps = chosen.plan.overlap is not Overlap.NONE
    if overlaps and (len(result.candidates) > 1 or result.search is not None):
        tables.say(f"note: {_optimality(result)}")
    caution = chosen.task.machine.caution(args.ranks)
    if caution:
        tables.say(f"note: {caution}")
    if result.advice is not None and not args.explain:
        tables.say(f"note: {scaling_table.memory_note(result.advice, taken=chosen.fits)}")
    say_limits([result.prediction])
    configs = chosen.plan.configs.values()
    if args.ranks > 1 and all(c.parts == 1 and c.first == 0 for c in configs):
        tables.say("note: the plan cuts no layer: one rank alone would be as fast")
