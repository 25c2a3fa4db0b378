"""``hpcpar predict``: prices plans for strategies and numbers of ranks, without running them.

It also explains a prediction and chooses the number of ranks.
"""

from __future__ import annotations

import argparse

from hpcpar.api.predict import PredictResult, predict
from hpcpar.cli import options
from hpcpar.cli.output_files import PICTURE, TIMELINE
from hpcpar.report import scaling_table, tables
from hpcpar.report.prediction_tables import say_limits, show_layers, show_predictions


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--plan", metavar="plan.json",
        help="price this plan file (instead of --network, --ranks, --batch, --strategy)",
    )
    options.add_network(parser, required=False)
    parser.add_argument("--machine", metavar="NAME|FILE",
                        help="preset or machine file (default: the plan file's, else "
                        "the site's, else local)")
    parser.add_argument("--ranks", type=options.several_ranks, metavar="P,P,...",
                        help="numbers of ranks (with --efficiency, --deadline or "
                        "--node-hours default 1,2,4,...,1024)")
    parser.add_argument("--batch", type=options.positive, metavar="B",
                        help="samples of a mini-batch, over all ranks")
    parser.add_argument("--batch-per-rank", type=options.share, metavar="B",
                        help="samples of a mini-batch on each rank (weak scaling); 1/4 where four "
                        "ranks share a sample")
    parser.add_argument("--strategy", metavar="S,S,...",
                        help="strategies; 'grid:*' stands for every grid, 'auto' for the "
                        "fastest that fits (default %(default)s)")
    options.add_planning(parser)
    options.add_output(parser)
    parser.add_argument("--forward-only", action="store_true",
                        help="inference: the forward pass alone")
    parser.add_argument("--explain", action="store_true",
                        help="name what limits each prediction, and what would help most")
    parser.add_argument("--efficiency", type=options.fraction, metavar="E",
                        help="choose the fastest with at least this parallel efficiency (0 to 1)")
    parser.add_argument("--deadline", type=options.amount, metavar="HOURS",
                        help="choose the cheapest that trains all --epochs in this time")
    parser.add_argument("--node-hours", type=options.amount, metavar="H",
                        help="choose the fastest that trains all --epochs within this budget")
    parser.add_argument("--plot", type=PICTURE, metavar="FILE.png",
                        help="write a bar chart, one panel for each number of ranks")
    parser.add_argument(
        "--timeline", type=TIMELINE, metavar="FILE.json",
        help="write the simulated timelines for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument("--timeline-plot", type=PICTURE, metavar="FILE.png",
                        help="write the simulated timelines as a picture")
    options.add_defaults(parser, predict)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    result = predict(**options.arguments(args, predict))
    if args.json:
        options.print_json(result.to_json())
    elif args.csv:
        options.print_csv(result.rows())
    elif result.predictions:
        _show(result, args)
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


def _show(result: PredictResult, args: argparse.Namespace) -> None:
    predictions, explanations = result.predictions, result.explanations
    first = predictions[0]
    batches = {p.batch for p in predictions}
    batch = f"batch {first.batch}" if len(batches) == 1 else f"batch {args.batch_per_rank} a rank"
    tables.show_line(result.answer)
    show_predictions(f"{first.network} on {first.machine}, {batch}, overlap {first.overlap}",
                     predictions, args.wide, result.best)
    if len(predictions) == 1 and not explanations:
        show_layers(first, args.wide)
    for p, explanation in zip(predictions, explanations, strict=False):
        scaling_table.show_explanation(p, explanation, args.wide)
    if result.scales:
        scaling_table.show_scaling(result.scales, result.choice, args.epochs, args.wide)
