"""``mpiexec -n P hpcpar run``: train under a plan, or infer, and record it."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import statistics
import sys
from typing import Any

from hpcpar.api.checks import check_direct
from hpcpar.cli import options
from hpcpar.comm.cores import fullest_node
from hpcpar.comm.world import World, world
from hpcpar.cost.price_plan import Prediction, price
from hpcpar.diagnose.processor import slowdowns
from hpcpar.errors import InputError
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan import plan as plans
from hpcpar.report.answer import of_run, plural
from hpcpar.report.progress import ProgressBar, RunProgress
from hpcpar.report.tables import show_line
from hpcpar.runtime.optimizer import SGD, WARMUP, RateSchedule
from hpcpar.schedule.runnable import require
from hpcpar.train import collect, record
from hpcpar.train.inference import Inference
from hpcpar.train.job import JobOptions
from hpcpar.train.loop import Training

#: Options that only a training has: those of `JobOptions`, and those of `SGD`.
LENGTH = ("epochs", "steps", "checkpoint")
UPDATE = ("rate", "momentum", "decay", "schedule", "warmup")


def add(p: argparse.ArgumentParser) -> None:
    """Adds the options."""
    options.add_start(p)
    p.add_argument("--plan", required=True, help="plan file, from: hpcpar plan -o")
    p.add_argument("--data", required=True, help="HDF5 dataset, from: hpcpar data")
    options.add_augment(p)
    p.add_argument("--forward-only", action="store_true",
                   help="do not train: once over the held-out part of the data, or all samples "
                   "where there is none, with the weights of --resume (or initial ones)")
    p.add_argument("--epochs", type=options.positive, help="length of the training (default 1)")
    p.add_argument("--steps", type=options.natural,
                   help="length in iterations, instead of --epochs")
    p.add_argument("--out", default="", help="write the record of the run here (HDF5)")
    p.add_argument("--checkpoint", help="write weights and state here after every epoch (HDF5)")
    p.add_argument("--resume", default="", help="go on from this checkpoint, made under any plan")
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
    p.add_argument("--seed", type=options.seed, default=0,
                   help="fixes initial weights, shuffling and dropout")
    p.add_argument("--machine", default="",
                   help="machine that the prediction in the record is for (default: the plan's)")
    options.add_direct(p)
    options.add_output(p)


def _schedule(text: str) -> dict[str, Any]:
    """The options of `SGD` that a schedule of the learning rate stands for."""
    name, colon, epochs = text.partition(":")
    value = options.one_of(RateSchedule)["type"](name)
    if colon and value != RateSchedule.STEP:
        raise argparse.ArgumentTypeError(f"'{text}': only step takes a number, as in step:30")
    schedule = {"schedule": RateSchedule(value)}
    return schedule | {"step_epochs": options.positive(epochs)} if colon else schedule


def main(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit status."""
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: argparse.Namespace, w: World) -> int:
    plan, machine, kernels, job_options = w.agree(lambda: _read(args))
    network = plan.network.build()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    kind = Inference if args.forward_only else Training
    job = kind(w, network, plan, kernels, job_options)
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
    if node.shared:
        lines.say(f"note: {node}")
    if w.rank == 0 and args.device == "cpu":
        for line in slowdowns(node.ranks):
            lines.say(f"note: {line}")
    progress = RunProgress(lines, prediction.iteration_s)
    with lines:
        if isinstance(job, Training):
            job.run(progress.training)
        else:
            job.run(progress.inference)
    job.close()
    run = collect.record(w, job, args.device, prediction.to_json(steps=True),
                         files.to_dict(machine), started, " ".join(sys.argv))
    if run is not None:
        if args.out:
            record.write(args.out, run)
            lines.say(f"record written to {args.out}")
        summary = _summary(job, run, prediction)
        if args.json:
            options.print_json(summary)
        elif args.csv:
            options.print_csv([{k: v for k, v in summary.items() if k != "losses"}])
        else:
            show_line(of_run(summary))
    return 0


def _images_per_s(run: record.RunRecord) -> float:
    """Samples a second of an inference, without the time that reading them takes."""
    return run.samples / float(run.iteration_s.max(axis=0).sum())


def _summary(job: Training | Inference, run: record.RunRecord,
             prediction: Prediction) -> dict[str, Any]:
    """The document of ``--json``."""
    plan, measured = job.plan, job.measured
    middle = statistics.median_high(run.iteration_s.max(axis=0)[run.measured].tolist())
    out: dict[str, Any] = {
        "network": plan.network.name, "strategy": plan.strategy,
        "ranks": plan.ranks, "batch": plan.batch,
        "test_accuracy": _last(measured.test_accuracy), "test_loss": _last(measured.test_loss),
    }
    if isinstance(job, Inference):
        return out | {
            "samples": measured.samples, "images_per_s": _images_per_s(run),
            "measured_pass_s": middle, "predicted_pass_s": prediction.iteration_s,
        }
    return out | {
        "steps": job.steps, "loss": measured.loss[-1], "losses": measured.loss,
        "train_accuracy": _last(measured.train_accuracy),
        "measured_iteration_s": middle, "predicted_iteration_s": prediction.iteration_s,
    }


def _read(args: argparse.Namespace) -> tuple[plans.Plan, Machine, Backend, JobOptions]:
    """Reads and checks everything that needs no communication."""
    check_direct(args.device, args.direct)
    length, update = ({name: getattr(args, name) for name in names
                       if getattr(args, name) is not None} for names in (LENGTH, UPDATE))
    given = length | update
    if args.forward_only and given:
        raise InputError(f"--{next(iter(given))} is of a training, but --forward-only does not "
                         "train; leave one of them out")
    schedule = update.pop("schedule", {})
    sgd = SGD(**update, **schedule)
    for path in (args.out, length.get("checkpoint", "")):
        if path and not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise InputError(f"cannot write {path}: its folder is missing or not writable; make "
                             "it, or choose another place")
    plan = plans.load(args.plan)
    require(plan.network.build(), plan)
    machine = options.machine_of(args.machine, plan, args.plan)
    return plan, machine, backend(args.device), JobOptions(
        args.data, resume=args.resume, seed=args.seed, sgd=sgd, direct=args.direct,
        augment=args.augment, **length)


def _last(values: list[float]) -> float | None:
    """The last value; None where it was not measured."""
    return values[-1] if values and not math.isnan(values[-1]) else None
