"""``mpiexec -n P hpcpar calibrate``: measure this machine into a machine file."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import asdict
from pathlib import Path

from hpcpar.api.checks import check_gpu_options
from hpcpar.api.options import PlanningOptions
from hpcpar.api.sources import network_of
from hpcpar.calibrate.calibrate import Calibration
from hpcpar.calibrate.for_auto import Search, calibrate_for_auto
from hpcpar.calibrate.refine import refine
from hpcpar.cli import options
from hpcpar.cli.calibrated import show_choice, show_machine
from hpcpar.cli.output_files import MACHINE
from hpcpar.comm import cards
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World, world
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import DTYPES
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say, seconds, show, show_line
from hpcpar.schedule.runnable import require
from hpcpar.search.auto import best, strategies_to_try
from hpcpar.train import record

#: The word in place of plan files.
AUTO = "auto"


def add(p: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_start(p)
    p.add_argument("-o", "--out", required=True, type=MACHINE,
                   metavar="machine.toml",
                   help="the machine file to write")
    p.add_argument("--refine", nargs="+", default=[], metavar="run.h5",
                   help="no MPI job: take the compute steps' times from these records of runs into "
                   "the existing machine file")
    p.add_argument("--for", dest="plans", nargs="+", default=[], metavar="plan.json",
                   help="measure the compute steps of these plans; auto: with --network, search, "
                   "measure what the best plans compute, and search again until the choice stands")
    p.add_argument("--budget", type=options.duration_s, metavar="N min",
                   help="with --for auto: measure for so long at most, first what tells most "
                   "(90s, 5min; default: until the choice stands)")
    options.add_network(p, required=False)
    p.add_argument("--batch", type=options.positive, help="mini-batch, with --network")
    p.add_argument("--strategy", default="", metavar="A,B",
                   help="strategies to measure, with --network (default: every named one)")
    p.add_argument("--dtype", default="float32", **options.one_of(DTYPES),
                   help="type of activations and weights, with --network (default float32)")
    options.add_gpu(p)
    options.add_output(p)


def _read(args: argparse.Namespace, w: World) -> tuple[list[plans.Plan], Backend]:
    """The plans whose compute steps are to be measured."""
    ranks = w.size
    check_gpu_options(args.device, args.transport, args.math)
    if args.budget and AUTO not in args.plans:
        raise InputError("--budget is of --for auto; give both, or none")
    if AUTO in args.plans:
        if len(args.plans) > 1 or args.strategy or not (args.network and args.batch):
            raise InputError("--for auto needs --network and --batch, and chooses the plans "
                             "itself: leave out plan files and --strategy")
        return [], backend(args.device, args.math, w.local_rank)
    chosen = [plans.load(path) for path in args.plans]
    for path, plan in zip(args.plans, chosen, strict=True):
        if plan.ranks != ranks:
            raise InputError(f"{path} is for {plan.ranks} ranks, this job has {ranks}; calibrate "
                             f"it with: mpiexec -n {plan.ranks}")
    if args.network:
        if not args.batch:
            raise InputError("--network needs --batch: compute steps are measured at the sizes "
                             "that they will have")
        spec, network = network_of(args.network, args.input, args.classes)
        local = files.load("local")
        tried = strategies_to_try(network, ranks, local)
        for strategy in args.strategy.split(",") if args.strategy else tried:
            chosen.append(plans.make_plan(spec, strategy, ranks, args.batch, dtype=args.dtype,
                                          machine=local))
    for plan in chosen:
        require(plan.network.build(), plan)
    return chosen, backend(args.device, args.math, w.local_rank)


def _search(args: argparse.Namespace, ranks: int) -> Search:
    """The search of ``hpcpar plan`` with its default options."""
    spec, network = network_of(args.network, args.input, args.classes)
    planning = PlanningOptions(dtype=args.dtype).planning(spec)
    return lambda machine: best(network, spec, ranks, args.batch, machine, **planning)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    if args.refine:
        return _refine(args)
    w = world()
    with w.guard():
        return _run(args, w)


def _refine(args: argparse.Namespace) -> int:
    """Without a job: a machine file and records in, the machine file out."""
    given = [name for name, value in (("--for", args.plans), ("--network", args.network)) if value]
    if given:
        raise InputError(
            f"--refine takes times from records, {given[0]} measures: do one after the other")
    found = refine(files.load(args.out), args.out, record.load(*args.refine))
    files.save(found.machine, args.out)
    if args.json:
        options.print_json({
            "new": found.new, "known": found.known, "ratio": found.ratio,
            "links": [asdict(x) for x in found.links],
            "records": [asdict(c) for c in found.changes],
        })
        return 0
    if args.csv:
        options.print_csv(asdict(c) for c in found.changes)
        return 0
    show_line(f"{found.new} compute steps are new in {args.out}, {found.known} were there and take "
              f"{found.ratio:.2f} times as long as they did (median)")
    show("iterations of the records",
         ("record", "plan", "ranks", "compute steps", "predicted before", "now", "measured",
          "now/measured"),
         [(c.path, c.strategy, c.ranks, c.steps, seconds(c.before_s), seconds(c.after_s),
           seconds(c.measured_s), f"{c.after_s / c.measured_s:.2f}") for c in found.changes],
         left=2, drop=("compute steps", "predicted before", "plan"), wide=args.wide)
    for level in found.links:
        show_line(f"{level.level}: latency {level.alpha:.2f} and inverse bandwidth "
                  f"{level.beta:.2f} times what they were, by {level.steps} communication steps")
    return 0


def _run(args: argparse.Namespace, w: World) -> int:
    chosen, kernels = w.agree(lambda: _read(args, w))
    begin = time.perf_counter()

    lines = ProgressBar(w.rank)
    node = fullest_node(w, args.device)
    if w.rank == 0 and args.device == "cpu":
        for line in slowdowns(node.ranks):
            say(f"note: {line}")
    for line in (*cards.shared(w, kernels.card), *cards.differences(w, kernels.versions)):
        lines.say(f"note: {line}")
    calibration = Calibration(w, kernels, Path(args.out).stem,
                              lambda what: lines.say(f"calibrating: {what}"),
                              Transport(args.transport))
    choice = None
    if AUTO in args.plans:
        search = w.agree(lambda: _search(args, w.size))
        machine, choice = calibrate_for_auto(calibration, search, args.budget or math.inf)
    else:
        machine = calibration.of(chosen)
    if w.rank == 0:
        files.save(machine, args.out)
        if args.json:
            options.print_json(files.to_dict(machine))
        elif args.csv:
            options.print_csv(asdict(level) for level in machine.levels)
        else:
            if choice is not None:
                show_choice(choice)
            show_machine(machine, args.wide)
        caution = machine.caution(w.size)
        if caution:
            say(f"note: {caution}")
        say(f"wrote {args.out} in {time.perf_counter() - begin:.1f} s")
    return 0
