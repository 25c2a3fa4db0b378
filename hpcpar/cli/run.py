"""``mpiexec -n P hpcpar run``: train under a plan, or infer, and record it."""

from __future__ import annotations

import argparse
import datetime
import math
import re
import statistics
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from hpcpar.api.checks import EMULATE, OneOf, check_gpu_options
from hpcpar.calibrate import provenance
from hpcpar.cli import options
from hpcpar.cli.output_files import CHECKPOINT, RECORD, check_training
from hpcpar.comm import cards
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.transport import Transport
from hpcpar.comm.world import World, world
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError
from hpcpar.files import lock
from hpcpar.hdf5 import check
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan import plan as plans
from hpcpar.report.answer import of_run, plural
from hpcpar.report.progress import ProgressBar, RunProgress
from hpcpar.report.tables import say, show_line
from hpcpar.runtime.emulate import emulate
from hpcpar.runtime.optimizer import SGD, WARMUP, BatchScaling, RateSchedule
from hpcpar.schedule.runnable import require
from hpcpar.signals import STATUS, StopRequest
from hpcpar.simulation.price_plan import Prediction, price
from hpcpar.simulation.simulate import Simulator
from hpcpar.train import record, run_record
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.collect import Recorder
from hpcpar.train.inference import Inference
from hpcpar.train.job import EpochEnd, Interval, JobOptions
from hpcpar.train.loop import Training
from hpcpar.train.saving import BackgroundWriter

#: Options that only a training has: those of `JobOptions`, and those of `SGD`.
LENGTH = ("epochs", "steps", "checkpoint", "every", "keep", "time_limit")
UPDATE = ("rate", "momentum", "decay", "schedule", "warmup", "base_batch", "scaling")


def add(p: argparse.ArgumentParser) -> None:
    """Adds the options."""
    check_scaling = OneOf(BatchScaling)
    options.add_start(p)
    p.add_argument("--plan", required=True, help="plan file, from: hpcpar plan -o")
    options.add_layers(p)
    p.add_argument("--data", required=True, help="HDF5 dataset, from: hpcpar data")
    options.add_augment(p)
    p.add_argument("--forward-only", action="store_true",
                   help="do not train: once over the held-out part of the data, or all samples "
                   "where there is none, with the weights of --resume (or initial ones)")
    p.add_argument("--epochs", type=options.positive, help="length of the training (default 1)")
    p.add_argument("--steps", type=options.natural,
                   help="length in iterations, instead of --epochs")
    p.add_argument("--out", type=RECORD, default="",
                   help="write the record of the run here (HDF5)")
    p.add_argument("--checkpoint", type=CHECKPOINT, help="write weights and state here (HDF5)")
    p.add_argument("--checkpoint-every", type=_interval, dest="every", metavar="N steps|N min",
                   help="how often: 500steps, 10min, 90s, 2h (default: after every epoch)")
    p.add_argument("--keep", type=options.positive, metavar="N",
                   help="checkpoints that stay: the older ones beside the newest, as "
                   "NAME.step500.h5 (default 1)")
    p.add_argument("--resume", default="", help="go on from this checkpoint, made under any plan; "
                   "continue the record of --out")
    p.add_argument("--overwrite", action="store_true",
                   help="replace the checkpoint and the record of another training")
    p.add_argument("--partial", action="store_true",
                   help="resume from what is left of a damaged checkpoint")
    p.add_argument("--time-limit", type=options.duration_s, metavar="N min",
                   help="stop in time: 90s, 30min, 2h (default: when the Slurm job ends)")
    p.add_argument("--elastic", action="store_true",
                   help="start the job, and go on with the ranks that are left when some are lost "
                   "(needs --checkpoint)")
    p.add_argument("--elastic-return", type=options.duration_s, default=60.0, metavar="N s",
                   help="lost ranks count as back after this time (default 60s)")
    p.add_argument("--rate", type=options.magnitude,
                   help="learning rate after the warm-up (default 0.01)")
    p.add_argument("--schedule", type=_schedule, metavar="|".join(RateSchedule),
                   help="how the rate falls: not at all; by 10 every 30 epochs (step:N: every N); "
                   "as half a cosine; by 6.3 after each quarter of the training (default step)")
    p.add_argument("--warmup", type=options.natural, metavar="N",
                   help="iterations in which the rate grows from 0 (default: a quarter of an "
                   f"epoch, at most {WARMUP})")
    p.add_argument("--momentum", type=options.part,
                   help="of SGD, or Adam's first beta (default 0.9)")
    p.add_argument("--decay", type=options.magnitude, help="weight decay (default 0.0005)")
    p.add_argument("--base-batch", type=options.positive, metavar="N",
                   help="samples of an update that --rate and --decay are meant for (default: as "
                   "many as there are); where there are k times as many, the rate is k times as "
                   "large. Layers with a pass for each rank (owt-b, owt-c) count those of a pass")
    p.add_argument("--scaling", type=lambda text: BatchScaling(check_scaling(text)),
                   metavar=check_scaling.metavar,
                   help="with --base-batch, rate times k, or rate and decay times sqrt(k) "
                   "(default linear)")
    p.add_argument("--seed", type=options.seed, default=0,
                   help="fixes initial weights, shuffling and dropout")
    p.add_argument("--machine", default="",
                   help="machine that the prediction in the record is for (default: the plan's)")
    options.add_external(p)
    options.add_gpu(p, emulates=True)
    options.add_output(p)


def _schedule(text: str) -> dict[str, Any]:
    """The options of `SGD` that a schedule of the learning rate stands for."""
    name, colon, epochs = text.partition(":")
    value = options.one_of(RateSchedule)["type"](name)
    if colon and value != RateSchedule.STEP:
        raise argparse.ArgumentTypeError(f"'{text}': only step takes a number, as in step:30")
    schedule = {"schedule": RateSchedule(value)}
    return schedule | {"step_epochs": options.positive(epochs)} if colon else schedule


def _interval(text: str) -> Interval:
    """Iterations, or a time."""
    found = re.fullmatch(r"(\d+)\s*steps?", text.strip())
    if found is None:
        return Interval(seconds=options.duration_s(text))
    return Interval(steps=options.positive(found[1]))


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    with StopRequest(args.time_limit or 0.0) as stop, ExitStack() as locks:
        w = world()
        with w.guard():
            w.agree(lambda: _lock(args, w, locks))
            return _run(args, w, stop)


def _lock(args: argparse.Namespace, w: World, locks: ExitStack) -> None:
    """Keeps other jobs from writing this one's files."""
    for path, what in ((args.checkpoint, "checkpoint"), (args.out, "run record")):
        if path and w.rank == 0:
            locks.enter_context(lock(path, what))


def _check_files(args: argparse.Namespace, w: World) -> None:
    """Checks files that somebody else may have made, and those that are replaced."""
    if w.rank == 0:
        check_training(args)
        check([path for path in (args.data, args.resume) if path], "file",
              "use one from: hpcpar data, or hpcpar run --checkpoint", args.allow_external)


def _run(args: argparse.Namespace, w: World, stop: StopRequest) -> int:
    w.agree(lambda: _check_files(args, w))
    plan, machine, kernels, job_options = w.agree(lambda: _read(args, w))
    network = plan.network.build()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    kind = Inference if args.forward_only else Training
    job = kind(w, network, plan, kernels, job_options)
    if isinstance(job, Training) and job.start >= job.steps:
        job.close()
        if w.rank == 0:
            say(f"{args.resume} is already at step {job.start} of {job.steps}: nothing to do; ask "
                "for more with --epochs or --steps")
        return 0
    if args.device == EMULATE:
        emulate(job.executor, Simulator(network, plan, machine))
    prediction = price(network, plan, machine, samples=job.measured.samples,
                       training=not args.forward_only)
    count = f"{job.loader.batches_per_epoch} passes forward"
    if isinstance(job, Training):
        count = f"{job.steps - job.start} iterations"
    node = fullest_node(w, args.device)
    lines = ProgressBar(w.rank)
    lines.say(f"{plan.network.name} on {plural(w.size, 'rank')} ({plan.strategy}), "
              f"batch {plan.batch}, {job.measured.samples} samples, {count}, {args.device}, "
              f"{w.library}")
    notes = [f"not restored: {fault}" for fault in job.not_restored]
    notes += [str(node)] if node.shared else []
    notes += ["computing is emulated: loss and accuracy mean nothing"] * (args.device == EMULATE)
    notes += [*cards.shared(w, kernels.card), *cards.differences(w, kernels.versions)]
    measured = provenance.origin(machine.quality, f"the plan's machine {machine.name}")
    notes += measured.notes(kernels.versions) if measured is not None else []
    notes += slowdowns(node.ranks) if w.rank == 0 and args.device == "cpu" else []
    for note in notes:
        lines.say(f"note: {note}")
    recorder = Recorder(w, job, args.device, node, {
        "prediction": prediction.to_json(steps=True), "machine": files.to_dict(machine),
        "started": started, "command": " ".join(sys.argv)}, _earlier(args, job))
    progress, reason = RunProgress(lines, prediction.iteration_s), ""
    with lines:
        if isinstance(job, Training):
            save = partial(recorder.saved, args.out) if args.out else None
            reason = job.run(progress.training, stop, save)
        else:
            reason = job.run(progress.inference, stop)
    job.close()
    if reason and isinstance(job, Inference):
        lines.say(f"stopped by {reason}")
        return STATUS
    for caution in kernels.cautions:
        lines.say(f"note: {caution}")
    run = recorder.collect()
    if run is not None:
        if args.out and isinstance(job, Inference):
            writer = BackgroundWriter()
            writer.submit(partial(record.write, args.out, run))
            writer.finish()
        if args.out:
            lines.say(f"record written to {args.out}")
        summary = _summary(job, run, prediction)
        if args.json:
            options.print_json(summary)
        elif args.csv:
            options.print_csv([{k: v for k, v in summary.items() if k != "losses"}])
        else:
            show_line(of_run(summary))
    if not reason or not isinstance(job, Training):
        return 0
    remedy = f"go on with --resume {args.checkpoint}" if args.checkpoint else "no --checkpoint"
    lines.say(f"stopped by {reason} after step {job.step} of {job.steps}; {remedy}")
    return STATUS


def _earlier(args: argparse.Namespace, job: Training | Inference) -> run_record.RunRecord | None:
    """The record that a resumed training continues, on rank 0."""
    resumes = args.out and args.resume and isinstance(job, Training)
    if job.world.rank or not resumes:
        return None
    return record.continued(args.out, plans.to_json(job.plan), run_record.steps_of(job.schedule))


def _images_per_s(run: run_record.RunRecord) -> float:
    """Samples a second of an inference, without the time that reading them takes."""
    return run.samples / float(run.iteration_s.max(axis=0).sum())


def _summary(job: Training | Inference, run: run_record.RunRecord,
             prediction: Prediction) -> dict[str, Any]:
    """The document of ``--json``."""
    plan, measured = job.plan, job.measured
    end = measured.epochs.values[-1] if measured.epochs.values else EpochEnd()
    middle = statistics.median_high(run.iteration_s.max(axis=0)[run.measured].tolist())
    counts = end.test_counts
    out: dict[str, Any] = {} if counts is None else {"test_pixels": ClassCounts(counts).to_json()}
    out |= {
        "network": plan.network.name, "strategy": plan.strategy,
        "ranks": plan.ranks, "batch": plan.batch,
        "test_accuracy": _number(end.test_accuracy), "test_loss": _number(end.test_loss),
    }
    if isinstance(job, Inference):
        return out | {
            "samples": measured.samples, "images_per_s": _images_per_s(run),
            "measured_pass_s": middle, "predicted_pass_s": prediction.iteration_s,
        }
    return out | {
        "steps": job.step, "loss": job.last_loss, "losses": measured.losses,
        "train_accuracy": _number(end.train_accuracy),
        "measured_iteration_s": middle, "predicted_iteration_s": prediction.iteration_s,
    }


def _read(args: argparse.Namespace,
          w: World) -> tuple[plans.Plan, Machine, Backend, JobOptions]:
    """Reads and checks everything that needs no communication."""
    check_gpu_options(args.device, args.transport, args.math)
    length, update = ({name: getattr(args, name) for name in names
                       if getattr(args, name) is not None} for names in (LENGTH, UPDATE))
    given = length | update
    if args.forward_only and given:
        name = next(iter(given)).replace("every", "checkpoint-every").replace("_", "-")
        raise InputError(f"--{name} is of a training, but --forward-only does not train; leave "
                         "one of them out")
    for name in ("every", "keep"):
        if name in length and "checkpoint" not in length:
            raise InputError("--checkpoint-every and --keep are of --checkpoint; name its file")
    if args.device == EMULATE and (args.resume or "checkpoint" in length):
        raise InputError("--device emulate trains nothing: leave out --checkpoint and --resume")
    if args.partial and not args.resume:
        raise InputError("--partial is of --resume; name the checkpoint with it")
    if "scaling" in update and "base_batch" not in update:
        raise InputError("--scaling is of --base-batch; give the batch that --rate is meant for")
    schedule = update.pop("schedule", {})
    sgd = SGD(**update, **schedule)
    plan = plans.load(args.plan)
    require(plan.network.build(), plan)
    machine = options.machine_of(args.machine, plan, args.plan)
    length.pop("time_limit", None)
    kernels = backend("cpu" if args.device == EMULATE else args.device, args.math,
                      w.local_rank)
    return plan, machine, kernels, JobOptions(
        args.data, resume=args.resume, partial=args.partial, seed=args.seed, sgd=sgd,
        transport=Transport(args.transport), augment=args.augment, **length)


def _number(value: float) -> float | None:
    """The value; None where it was not measured."""
    return None if math.isnan(value) else value
