"""``mpiexec -n P hpcpar verify``: compares a few training steps under a plan with one rank."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.cli.options import ExternalOptions, ResultOptions, StartOptions
from hpcpar.comm.device_options import DeviceOptions, kernels_of_all
from hpcpar.comm.world import World, world
from hpcpar.data.dataset import REMEDY
from hpcpar.io.hdf5 import check
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.options import other_names
from hpcpar.options.checks import OneOf, path
from hpcpar.options.fields import option, required
from hpcpar.plan import plan as plans
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables.answer import plural
from hpcpar.report.verify import show_result, to_json
from hpcpar.schedule.runnable import require, require_own_training, require_servers
from hpcpar.train.verify import (
    FORMATS,
    Result,
    Verification,
    VerifyOptions,
    comparable,
)


@dataclass(frozen=True, kw_only=True)
class VerifyCommand(ResultOptions, ModuleOptions, VerifyOptions, DeviceOptions, ExternalOptions,
                    StartOptions):
    example = "hpcpar verify -n 2 --plan plan.json"
    plan: str = required(path, "plan file from hpcpar plan -o", "plan.json", section="plan")
    precision: str = option(
        "fp64", OneOf(FORMATS, other_names.FORMATS), "number format of all tensors", section="plan")


def main(args: VerifyCommand) -> int:
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: VerifyCommand, w: World) -> int:
    w.agree(lambda: _check_data(args, w))
    of_all = kernels_of_all(w, args.kernels)
    given, kernels = w.agree(lambda: _read(args, w, of_all))
    network = given.network.build()
    plan = w.agree(lambda: comparable(network, given, args.precision))
    lines = ProgressBar(w.rank)
    verification = Verification(w, network, plan, kernels, args)
    lines.say(f"{plan.network.name} on {plural(w.size, 'rank')} ({plan.strategy}) beside one rank, "
              f"batch {plan.batch}, {args.steps} steps, {args.precision}, {args.device}, "
              f"{w.library}")
    if given.batch_norm == "local":
        lines.say("note: the plan's batch normalization takes each rank's own statistics, so its "
                  "training differs from serial training by design; verifying with statistics of "
                  "the whole batch instead")

    def tell(step: int, so_far: Result) -> None:
        worst = so_far.largest
        lines.say(
            f"step {step}/{args.steps}",
            f"loss {so_far.losses[-1]:.6f} (one rank {so_far.serial_losses[-1]:.6f})",
            f"worst difference so far {worst.value:.1e} of {worst.tolerance:.1e}, {worst}",
        )

    result = verification.run(tell)
    if w.rank == 0:
        title = (f"difference from one rank in {args.steps} steps, relative to each tensor's norm "
                 "(at the step where it is the largest fraction of its tolerance)")
        document = to_json(result)
        args.show(
            lambda: {"network": plan.network.name, "strategy": plan.strategy, "ranks": plan.ranks,
                     "batch": plan.batch, "precision": args.precision, "steps": args.steps,
                     "batch_norm": plan.batch_norm} | document,
            lambda: document["layers"], lambda: show_result(result, title, args.wide))
        sys.stdout.flush()
    result.check()
    return 0


def _check_data(args: VerifyCommand, w: World) -> None:
    """Checks a data file from an unknown source."""
    if args.data and w.rank == 0:
        check([args.data], "data file", REMEDY, args.allow_external)


def _read(args: VerifyCommand, w: World, kernels: str) -> tuple[plans.Plan, Backend]:
    """Reads and checks the inputs, without communication."""
    plan = plans.load(args.plan)
    network = plan.network.build()
    require_own_training(network)
    require(network, plan)
    require_servers(plan, args.device)
    calibrated = plan.machine.convolutions if plan.machine else None
    return plan, backend(args.device, local_rank=w.local_rank, kernels=kernels,
                         calibrated=calibrated)
