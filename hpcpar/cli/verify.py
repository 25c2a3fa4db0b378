"""``mpiexec -n P hpcpar verify``: compares a few steps under a plan with the same on one rank."""

from __future__ import annotations

import argparse
import sys

from hpcpar.cli import options
from hpcpar.comm.world import World, world
from hpcpar.data.dataset import REMEDY
from hpcpar.errors import InputError
from hpcpar.hdf5 import check
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.plan import plan as plans
from hpcpar.report.answer import plural
from hpcpar.report.progress import ProgressBar
from hpcpar.report.verify import show_result, to_json
from hpcpar.runtime.optimizer import SGD
from hpcpar.schedule.runnable import require
from hpcpar.train.verify import (
    DTYPES,
    Result,
    Verification,
    VerifyOptions,
    comparable,
)


def add(p: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_start(p)
    p.add_argument("--plan", required=True, help="plan file, from: hpcpar plan -o")
    options.add_layers(p)
    p.add_argument("--data", default="",
                   help="HDF5 dataset, from: hpcpar data (default: random numbers)")
    options.add_augment(p)
    p.add_argument("--steps", type=options.positive, default=3, help="iterations (default 3)")
    p.add_argument("--dtype", default="float64", **options.one_of(DTYPES),
                   help="type of all tensors (default float64)")
    p.add_argument(
        "--tolerance", type=options.magnitude,
        help="largest relative difference that passes (default: of each tensor what follows from "
        "a serial run with numbers that are off in their last digits)",
    )
    p.add_argument(
        "--rate", type=options.magnitude, default=0.001,
        help="learning rate (default 0.001: small, lest training blows up what rounding leaves)",
    )
    options.add_external(p)
    p.add_argument("--seed", type=options.seed, default=0,
                   help="fixes initial weights, data and dropout")
    options.add_device(p)
    options.add_output(p)


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: argparse.Namespace, w: World) -> int:
    w.agree(lambda: _check_data(args, w))
    given, kernels, verify_options = w.agree(lambda: _read(args, w))
    network = given.network.build()
    plan = w.agree(lambda: comparable(network, given, args.dtype))
    lines = ProgressBar(w.rank)
    verification = Verification(w, network, plan, kernels, verify_options)
    lines.say(f"{plan.network.name} on {plural(w.size, 'rank')} ({plan.strategy}) beside one rank, "
              f"batch {plan.batch}, {args.steps} steps, {args.dtype}, {args.device}, {w.library}")
    if given.batch_norm == "local":
        lines.say("note: the plan's batch normalisation takes the statistics of each rank's part, "
                  "so its training differs from a serial one by design; verified with those of the "
                  "whole batch instead")

    def tell(step: int, so_far: Result) -> None:
        most = so_far.largest
        lines.say(
            f"step {step}/{args.steps}",
            f"loss {so_far.losses[-1]:.6f} (one rank {so_far.serial_losses[-1]:.6f})",
            f"worst difference so far {most.value:.1e} of {most.tolerance:.1e}, {most}",
        )

    result = verification.run(tell)
    if w.rank == 0:
        title = (f"difference from one rank in {args.steps} steps, relative to each tensor's norm "
                 "(where it is the largest part of its tolerance)")
        document = to_json(result)
        if args.json:
            options.print_json(
                {"network": plan.network.name, "strategy": plan.strategy, "ranks": plan.ranks,
                 "batch": plan.batch, "dtype": args.dtype, "steps": args.steps,
                 "batch_norm": plan.batch_norm} | document)
        elif args.csv:
            options.print_csv(document["layers"])
        else:
            show_result(result, title, args.wide)
        sys.stdout.flush()
    result.check()
    return 0


def _check_data(args: argparse.Namespace, w: World) -> None:
    """Checks a file that somebody else may have made."""
    if args.data and w.rank == 0:
        check([args.data], "data file", REMEDY, args.allow_external)


def _read(args: argparse.Namespace,
          w: World) -> tuple[plans.Plan, Backend, VerifyOptions]:
    """Reads and checks everything that needs no communication."""
    if args.augment and not args.data:
        raise InputError("--augment changes the images of a file; give one with --data")
    plan = plans.load(args.plan)
    require(plan.network.build(), plan)
    kernels = backend(args.device, local_rank=w.local_rank)
    return plan, kernels, VerifyOptions(args.data, args.steps, args.seed, SGD(args.rate),
                                        args.tolerance, args.augment)
