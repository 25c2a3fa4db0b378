"""``hpcpar predict``: prices plans, explains predictions, and chooses the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.api.predict import PredictArguments, PredictResult, price_plans
from hpcpar.cli.options import ResultOptions
from hpcpar.options.fields import option
from hpcpar.options.output_files import PICTURE, TIMELINE
from hpcpar.report import tables
from hpcpar.report.tables import scaling_table
from hpcpar.report.tables.anchors import show_anchors
from hpcpar.report.tables.prediction_tables import say_limits, show_layers, show_predictions


@dataclass(frozen=True, kw_only=True)
class PredictCommand(ResultOptions, ModuleOptions, PredictArguments, section="output"):
    example = "hpcpar predict --network vgg16 --ranks 4,16 --batch 64 --strategy data,layerwise"
    plot: str = option("", PICTURE, "draw a bar chart with a panel for each number of ranks",
                       "FILE.png")
    timeline: str = option("", TIMELINE, "write the simulated timelines for ui.perfetto.dev or "
                           "chrome://tracing", "FILE.json")
    timeline_plot: str = option("", PICTURE, "draw the simulated timelines",
                                "FILE.png")


def main(args: PredictCommand) -> int:
    result = price_plans(args)
    args.show(result.to_json, result.rows, lambda: _show(result, args))
    say_limits(result.predictions)
    for case in result.skipped:
        tables.say(f"note: skipped {case['strategy']} on {case['ranks']} ranks: {case['reason']}")
    if args.plot:
        result.plot(args.plot)
        tables.say(f"wrote {args.plot}")
    if args.timeline:
        result.save_timeline(args.timeline)
        tables.say(f"wrote {args.timeline}; open it at https://ui.perfetto.dev")
    if args.timeline_plot:
        result.plot_timeline(args.timeline_plot)
        tables.say(f"wrote {args.timeline_plot}")
    return 0


def _show(result: PredictResult, args: PredictCommand) -> None:
    predictions, explanations = result.predictions, result.explanations
    if not predictions:
        return
    first = predictions[0]
    batches = {p.batch for p in predictions}
    batch = "measured batches" if result.why else f"batch {args.batch_per_rank} per rank"
    batch = f"batch {first.batch}" if len(batches) == 1 else batch
    tables.show_line(result.answer)
    show_predictions(f"{first.network} on {first.machine}, {batch}, overlap {first.overlap}",
                     predictions, args.wide, result.columns_s, result.ratios)
    if (anchoring := result.candidates[0].task.machine.anchored) is not None:
        show_anchors(anchoring, result.why, args.wide)
    if len(predictions) == 1 and not (explanations or result.why):
        show_layers(first, args.wide)
    for p, explanation in zip(predictions, explanations, strict=False):
        scaling_table.show_explanation(p, explanation, args.wide)
    if result.scales:
        scaling_table.show_scaling(result.scales, result.choice, args.epochs, args.wide)
