"""``mpiexec -n P hpcpar calibrate``: measures this machine, and writes a machine file."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hpcpar.api.options import LossOptions, ModuleOptions, PlanningOptions, about_network
from hpcpar.api.sources import network_of
from hpcpar.calibrate import conv_probe
from hpcpar.calibrate.calibrate import Calibration
from hpcpar.calibrate.for_auto import Search, calibrate_for_auto
from hpcpar.calibrate.refine import refine
from hpcpar.cli.calibrated import show_machine, show_refined
from hpcpar.cli.options import ResultOptions, StartOptions
from hpcpar.comm import cards
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.device_options import GraphOptions, kernels_of_all
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World, world
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError
from hpcpar.io.schema import plain
from hpcpar.kernels import backend
from hpcpar.kernels.conv_choice import AUTO as AUTO_KERNELS
from hpcpar.kernels.interface import Backend, MathMode
from hpcpar.machine import files
from hpcpar.options.checks import OneOf, duration_s, path, positive
from hpcpar.options.fields import OUT, option, required
from hpcpar.options.other_names import FORMATS
from hpcpar.options.output_files import MACHINE, check_places
from hpcpar.plan import plan as plans
from hpcpar.plan.precision import PRECISIONS
from hpcpar.report.progress import ProgressBar
from hpcpar.report.tables import say
from hpcpar.schedule.runnable import require, require_device, require_executed
from hpcpar.search.auto import best, strategies_to_try
from hpcpar.train import record_file

#: The value of --for that lets the search choose the plans.
AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand(ResultOptions, ModuleOptions, GraphOptions, LossOptions, StartOptions,
                       section="plan"):
    example = "hpcpar calibrate -n 2 --network lenet5 --batch 64 -o machine.toml"
    out: str = required(
        MACHINE, "machine file to write", "machine.toml", **OUT,
        section="output")
    refine: tuple[str, ...] = option(
        (), path, "update the existing machine file with the times of these records; needs no MPI "
        "job", "run.h5", nargs="+", first=True)
    plans: tuple[str, ...] = option(
        (), path, "measure the compute steps of these plans; auto (with --network): search, "
        "measure the best plans' compute steps, and repeat until the choice stays the same",
        "plan.json", names=("--for",), nargs="+", first=True)
    budget: float | None = option(
        None, duration_s, "with --for auto: longest time to measure, most informative steps first "
        "(90s, 5min; default: until the choice stays the same)", "N min")
    network: str = field(default="", metadata=about_network())
    batch: int | None = option(None, positive, "with --network: samples of a mini-batch", "B",
                             first=True)
    strategy: str = option(
        "", str, "with --network: strategies to measure (default: all named strategies)", "A,B")
    precision: str = option("fp32", OneOf(PRECISIONS, FORMATS), "with --network: number format")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget and AUTO not in self.plans:
            raise InputError("--budget needs --for auto: add --for auto, or drop --budget")


def _read(args: CalibrateCommand, w: World) -> tuple[list[plans.Plan], str]:
    """The plans whose compute steps the job measures, and how GPUs multiply (`MathMode`)."""
    ranks = w.size
    if w.rank == 0:
        check_places(args)
    if AUTO in args.plans:
        if len(args.plans) > 1 or args.strategy or not (args.network and args.batch):
            raise InputError("--for auto needs --network and --batch, and chooses the plans "
                             "itself: drop plan files and --strategy")
        return [], args.math_for(args.precision)
    chosen = [plans.load(file) for file in args.plans]
    for file, plan in zip(args.plans, chosen, strict=True):
        if plan.ranks != ranks:
            raise InputError(f"{file} is for {plan.ranks} ranks, but this job has {ranks}; "
                             f"calibrate it with: mpiexec -n {plan.ranks}")
    if args.network:
        if not args.batch:
            raise InputError("--network needs --batch, which sets the sizes of the compute steps: "
                             "add --batch B")
        spec, network = network_of(args.network, args.input, args.classes, args.loss,
                               args.label_smoothing)
        local = files.load("local")
        tried = strategies_to_try(network, ranks, local)
        for strategy in args.strategy.split(",") if args.strategy else tried:
            chosen.append(plans.make_plan(spec, strategy, ranks, args.batch,
                                          precision=args.precision, machine=local))
    for plan in chosen:
        require_executed(plan.framework)
        require_device(plan, args.device)
        require(plan.network.build(), plan)
    (math, *others) = {args.math_for(plan.precision) for plan in chosen} or {MathMode.FP32.value}
    if others:
        raise InputError("the plans mix tf32 and fp32 products: calibrate them separately, or "
                         "choose one with --math")
    return chosen, math


def _search(args: CalibrateCommand, ranks: int) -> Search:
    """The search of ``hpcpar plan`` with its default options."""
    batch = args.batch or 1  # `_read` refuses a missing batch
    spec, network = network_of(args.network, args.input, args.classes, args.loss,
                               args.label_smoothing)
    planning = PlanningOptions(precision=args.precision).planning(network)
    return lambda machine: best(network, spec, ranks, batch, machine, **planning)


def main(args: CalibrateCommand) -> int:
    if args.refine:
        return _refine(args)
    w = world()
    with w.guard():
        return _run(args, w)


def _refine(args: CalibrateCommand) -> int:
    """Updates a machine file from records, without a job."""
    given = [name for name, value in (("--for", args.plans), ("--network", args.network)) if value]
    if given:
        raise InputError(
            f"--refine takes times from records, but {given[0]} measures: use one at a time")
    found = refine(files.load(args.out), args.out, record_file.load(*args.refine))
    files.save(found.machine, args.out)
    args.show(lambda: {"new": found.new, "known": found.known, "ratio": found.ratio,
                       "links": plain(found.links), "records": plain(found.changes)},
              lambda: plain(found.changes), lambda: show_refined(found, args.out, args.wide))
    return 0


def _kernels(args: CalibrateCommand, w: World, chosen: list[plans.Plan], math_mode: str,
             lines: ProgressBar) -> tuple[Backend, dict[str, float]]:
    """The kernels, and NumPy's times over PyTorch's faster ones if they decide them, in a plan of
    each network. Collective.
    """
    name, ratios = kernels_of_all(w, args.kernels), dict[str, tuple[float, ...]]()
    make = partial(backend, args.device, math_mode, w.local_rank, name)
    if args.device == "cpu" and name == AUTO_KERNELS:
        w.agree(make)  # fails where PyTorch cannot be imported
        lines.say("calibrating: convolutions of NumPy and of PyTorch")
        compared = chosen or w.agree(lambda: [_search(args, w.size)(files.load("local"))[0].plan])
        ratios = conv_probe.numpy_over_others(w, {
            p.network: p for p in reversed(compared)}.values())
    return w.agree(lambda: make(conv_probe.fastest(ratios))), {
        kind: max(of_torch) for kind, of_torch in ratios.items()}


def _run(args: CalibrateCommand, w: World) -> int:
    chosen, math_mode = w.agree(lambda: _read(args, w))
    begin = time.perf_counter()

    lines = ProgressBar(w.rank)
    kernels, ratios = _kernels(args, w, chosen, math_mode, lines)
    node = fullest_node(w, args.device)
    if w.rank == 0 and args.device == "cpu":
        for line in slowdowns(node.ranks):
            say(f"note: {line}")
    for line in (*cards.shared(w, kernels.card), *cards.differences(w, kernels.versions)):
        lines.say(f"note: {line}")
    calibration = Calibration(w, kernels, Path(args.out).stem,
                              lambda what: lines.say(f"calibrating: {what}"),
                              Transport(args.transport), args.graphs == "auto")
    choice = None
    if AUTO in args.plans:
        search = w.agree(lambda: _search(args, w.size))
        machine, choice = calibrate_for_auto(calibration, search, args.budget or math.inf)
    else:
        machine = calibration.measure(chosen)
    if w.rank == 0:
        if ratios:
            machine = replace(machine, quality={**machine.quality, "kernels": ratios})
        files.save(machine, args.out)
        args.show(lambda: files.to_dict(machine), lambda: plain(machine.levels),
                  lambda: show_machine(machine, choice, args.wide))
        caution = machine.caution(w.size)
        if caution:
            say(f"note: {caution}")
        say(f"wrote {args.out} in {time.perf_counter() - begin:.1f} s")
    return 0
