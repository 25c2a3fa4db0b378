"""``hpcpar predict``: prices plans for strategies and numbers of ranks, without running them.

It also explains a prediction and chooses the number of ranks.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from hpcpar.cli import options
from hpcpar.cost.price_plan import Prediction, price
from hpcpar.errors import InputError
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.report import answer, perfetto, prediction_bars, scaling_table, tables, timeline_plot
from hpcpar.report.prediction_tables import show_layers, show_predictions
from hpcpar.search import auto, scaling
from hpcpar.search.candidates import Candidate, PlanningTask
from hpcpar.search.explain import Explanation, explain

#: Default numbers of ranks to choose from.
USUAL_RANKS = [2**i for i in range(11)]


def efficiency(text: str) -> float:
    """A parallel efficiency."""
    if not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a parallel efficiency between 0 and 1, as in 0.8")
    return float(text)


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
    parser.add_argument("--ranks", type=options.positives, metavar="P,P,...",
                        help="numbers of ranks (with --efficiency, --deadline or "
                        "--node-hours default 1,2,4,...,1024)")
    parser.add_argument("--batch", type=options.positive, metavar="B",
                        help="samples of a mini-batch, over all ranks")
    parser.add_argument("--batch-per-rank", type=options.share, metavar="B",
                        help="samples of a mini-batch on each rank (weak scaling); 1/4 where four "
                        "ranks share a sample")
    parser.add_argument("--strategy", default="data", metavar="S,S,...",
                        help="strategies; 'grid:*' stands for every grid, 'auto' for the "
                        "fastest that fits (default data)")
    options.add_planning(parser)
    parser.add_argument("--forward-only", action="store_true",
                        help="inference: the forward pass alone")
    parser.add_argument("--explain", action="store_true",
                        help="name what limits each prediction, and what would help most")
    parser.add_argument("--efficiency", type=efficiency, metavar="E",
                        help="choose the fastest with at least this parallel efficiency (0 to 1)")
    parser.add_argument("--deadline", type=options.amount, metavar="HOURS",
                        help="choose the cheapest that trains all --epochs in this time")
    parser.add_argument("--node-hours", type=options.amount, metavar="H",
                        help="choose the fastest that trains all --epochs within this budget")
    parser.add_argument("--plot", metavar="FILE.png",
                        help="write a bar chart, one panel for each number of ranks")
    parser.add_argument(
        "--timeline", metavar="FILE.json",
        help="write the simulated timelines for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument("--timeline-plot", metavar="FILE.png",
                        help="write the simulated timelines as a picture")


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    skipped: list[dict[str, Any]] = []
    data: dict[int, Prediction] = {}
    candidates = [] if args.plan else _candidates(args, skipped, data)
    predictions = [_of_plan(args)] if args.plan else [c.prediction for c in candidates]
    explanations = [explain(c.task.network, c) for c in candidates] if args.explain else []
    scales, choice = _scaling(args, candidates)
    if args.json:
        _print_json(predictions, skipped, explanations, scales, choice)
    elif args.csv:
        costs = [s.to_json() for s in scales] or [{}] * len(predictions)
        options.print_csv(p.to_json() | cost for p, cost in zip(predictions, costs, strict=True))
    elif predictions:
        local_s = candidates[0].local_statistics_s if candidates else None
        _show(predictions, explanations, scales, choice, local_s, args)
    for entry in skipped:
        tables.say(
            f"note: skipped {entry['strategy']} on {entry['ranks']} ranks: {entry['reason']}")
    if args.plot:
        prediction_bars.bars(predictions, data, args.plot)
        tables.say(f"wrote {args.plot}")
    if args.timeline:
        perfetto.save(predictions, args.timeline)
        tables.say(f"wrote {args.timeline}; open it at https://ui.perfetto.dev")
    if args.timeline_plot:
        timeline_plot.timelines(predictions, args.timeline_plot)
        tables.say(f"wrote {args.timeline_plot}")
    return 0


def _print_json(predictions: list[Prediction], skipped: list[dict[str, Any]],
                explanations: list[Explanation], scales: list[scaling.Scale],
                choice: scaling.Scale | None) -> None:
    single = len(predictions) == 1 and not skipped
    documents = [p.to_json(steps=single) for p in predictions]
    for data, explanation in zip(documents, explanations, strict=False):
        data["explain"] = explanation.to_json()
    document: dict[str, Any] = {"predictions": documents, "skipped": skipped}
    if single and not scales:
        document = documents[0]
    if scales:
        document |= {"scaling": [s.to_json() for s in scales],
                     "choice": choice.to_json() if choice else None}
    options.print_json(document)


def _show(predictions: list[Prediction], explanations: list[Explanation],
          scales: list[scaling.Scale], choice: scaling.Scale | None, local_s: float | None,
          args: argparse.Namespace) -> None:
    first = predictions[0]
    batches = {p.batch for p in predictions}
    batch = f"batch {first.batch}" if len(batches) == 1 else f"batch {args.batch_per_rank} a rank"
    tables.show_line(answer.of_scaling(choice, args.epochs) if scales else
                     answer.of_predictions(predictions, args.epochs))
    show_predictions(f"{first.network} on {first.machine}, {batch}, overlap {first.overlap}",
                     predictions, args.wide, local_s)
    if len(predictions) == 1 and not explanations:
        show_layers(first, args.wide)
    for p, explanation in zip(predictions, explanations, strict=False):
        scaling_table.show_explanation(p, explanation, args.wide)
    if scales:
        scaling_table.show_scaling(scales, choice, args.epochs, args.wide)


def _of_plan(args: argparse.Namespace) -> Prediction:
    for name in ("network", "input", "classes", "ranks", "batch", "batch_per_rank", "gather",
                 "overlap"):
        if getattr(args, name) is not None:
            raise InputError(
                f"--plan and --{name.replace('_', '-')} exclude each other: the plan file fixes it")
    for name in ("efficiency", "deadline", "node_hours", "explain"):
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} compares strategies and ranks: give "
                             "--network, --ranks and --batch, not --plan")
    plan = plans.load(args.plan)
    machine = options.machine_of(args.machine, plan, args.plan)
    return price(plan.network.build(), plan, machine, samples=options.samples(args, plan.network),
                 accounting=args.accounting, training=not args.forward_only,
                 **options.pricing(args))


def _asks(args: argparse.Namespace) -> bool:
    return any(value is not None for value in (args.efficiency, args.deadline, args.node_hours))


def _candidates(args: argparse.Namespace, skipped: list[dict[str, Any]],
                data: dict[int, Prediction]) -> list[Candidate]:
    """Every strategy on every number of ranks; those that cannot be cut so go to `skipped`.

    With --plot, data parallelism on each number of ranks goes to `data`.
    """
    if args.ranks is None and _asks(args):
        args.ranks = USUAL_RANKS
    for name in ("network", "ranks"):
        if getattr(args, name) is None:
            raise InputError(
                f"--{name} is missing; give --network, --ranks and --batch, or --plan plan.json")
    if (args.batch is None) == (args.batch_per_rank is None):
        raise InputError("give --batch (over all ranks) or --batch-per-rank, one of the two")
    spec = options.network_spec(args.network, args.input, args.classes)
    network, machine = spec.build(), files.load(args.machine)
    chosen = options.planning(args) | {"training": not args.forward_only,
                                       "samples": options.samples(args, spec)}
    out: list[Candidate] = []

    def one(strategy: str, ranks: int, batch: int) -> None:
        try:
            if strategy == "auto":
                out.append(auto.best(network, spec, ranks, batch, machine, **chosen)[0])
            else:
                out.append(auto.price_named(network, spec, strategy, ranks, batch, machine,
                                            **chosen))
        except InputError as err:
            skipped.append({"strategy": strategy, "ranks": ranks, "reason": str(err)})

    for ranks in args.ranks:
        batch = args.batch or scaling.weak_batch(args.batch_per_rank, ranks)
        for pattern in map(str.strip, args.strategy.split(",")):
            for strategy in ["auto"] if pattern == "auto" else auto.expand(pattern, ranks):
                one(strategy, ranks, batch)
        if args.plot and ranks <= batch:
            wanted = auto.task(network, spec, ranks, batch, machine, **chosen)
            data[ranks] = auto.alone(wanted, "data").prediction
    if not out and len(skipped) == 1:
        raise InputError(skipped[0]["reason"])
    return out


def _scaling(args: argparse.Namespace,
             candidates: list[Candidate]) -> tuple[list[scaling.Scale], scaling.Scale | None]:
    """Efficiency and cost of every candidate, and the one that meets the conditions."""
    if not _asks(args):
        return [], None
    if not candidates:
        raise InputError("nothing to choose from: every strategy was skipped on every number of "
                         "ranks; use a larger batch or fewer ranks")
    task = candidates[0].task
    # one rank's time for a sample; in weak scaling, with one rank's share of the batch
    alone = PlanningTask(task.network, task.spec, 1, args.batch or math.ceil(args.batch_per_rank),
                         task.machine, task.gather, task.samples, task.options)
    serial_s = auto.alone(alone, "data").iteration_s / alone.batch
    scales = scaling.scaling(candidates, task.samples or 0, args.epochs,
                             scaling.node_ranks(task.machine), serial_s)
    deadline = None if args.deadline is None else 3600 * args.deadline
    return scales, scaling.best_ranks(scales, efficiency=args.efficiency, deadline_s=deadline,
                                      node_hours=args.node_hours)
