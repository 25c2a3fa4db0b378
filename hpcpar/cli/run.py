"""``mpiexec -n P hpcpar run``: train under a plan, or infer, and record it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from typing import Any

from hpcpar.cli.launch import limit_threads

limit_threads()

from hpcpar.cli.options import check_direct  # noqa: E402
from hpcpar.cli.progress import RunProgress  # noqa: E402
from hpcpar.comm.cores import fullest_node  # noqa: E402
from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.cost.price_plan import Prediction, price  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.kernels.interface import Backend  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.plan import plan as plans  # noqa: E402
from hpcpar.runtime.optimizer import SGD  # noqa: E402
from hpcpar.schedule.runnable import require  # noqa: E402
from hpcpar.train import collect, record  # noqa: E402
from hpcpar.train.inference import Inference  # noqa: E402
from hpcpar.train.job import JobOptions  # noqa: E402
from hpcpar.train.loop import Training  # noqa: E402

#: What a training alone has: option -> its value where it is not given.
TRAINING: dict[str, Any] = {"epochs": 1, "steps": 0, "checkpoint": "", "rate": 0.01,
                            "momentum": 0.9, "decay": 0.0005}


def add(subparsers: argparse._SubParsersAction) -> None:
    """The options of the command."""
    p = subparsers.add_parser("run", help="train under a plan on real MPI ranks, and record it")
    p.add_argument("--plan", required=True, help="plan file, from: hpcpar plan -o")
    p.add_argument("--data", required=True, help="HDF5 dataset, from: hpcpar data")
    p.add_argument("--forward-only", action="store_true",
                   help="do not train: once over the held-out part of the data, or all samples "
                   "where there is none, with the weights of --resume (or initial ones)")
    p.add_argument("--epochs", type=int, help="length of the training (default 1)")
    p.add_argument("--steps", type=int, help="length in iterations, instead of --epochs")
    p.add_argument("--out", default="", help="write the record of the run here (HDF5)")
    p.add_argument("--checkpoint", help="write weights and state here after every epoch (HDF5)")
    p.add_argument("--resume", default="", help="go on from this checkpoint, made under any plan")
    p.add_argument("--rate", type=float, help="learning rate (default 0.01)")
    p.add_argument("--momentum", type=float, help="of SGD, or Adam's first beta (default 0.9)")
    p.add_argument("--decay", type=float, help="weight decay (default 0.0005)")
    p.add_argument("--seed", type=int, default=0,
                   help="fixes initial weights, shuffling and dropout")
    p.add_argument("--machine", default="",
                   help="machine that the prediction in the record is for (default: the plan's)")
    p.add_argument("--device", default="cpu", help="cpu or gpu")
    p.add_argument("--direct", action="store_true",
                   help="hand GPU buffers to MPI (needs a GPU-aware library)")
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: argparse.Namespace, w: World) -> int:
    plan, machine, kernels, options = w.agree(lambda: _read(args))
    network = plan.network.build()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    kind = Inference if args.forward_only else Training
    job = kind(w, network, plan, kernels, options)
    prediction = price(network, plan, machine, samples=job.measured.samples,
                       training=not args.forward_only)
    count = f"{job.loader.batches_per_epoch} passes forward"
    if isinstance(job, Training):
        count = f"{job.steps - job.start} iterations"
    node = fullest_node(w, args.device)
    if w.rank == 0:
        print(
            f"{plan.network.name} on {w.size} ranks ({plan.strategy}), batch {plan.batch}, "
            f"{job.measured.samples} samples, {count}, "
            f"{args.device}, {w.library}",
            file=sys.stderr,
        )
        if node.shared:
            print(f"note: {node}", file=sys.stderr)
    progress = RunProgress(w.rank, prediction.iteration_s)
    if isinstance(job, Training):
        job.run(progress.training)
    else:
        job.run(progress.inference)
    job.close()
    run = collect.record(w, job, args.device, prediction.to_json(steps=True),
                         files.to_dict(machine), started, " ".join(sys.argv))
    if run is not None:
        if args.forward_only:
            print(f"{_images_per_s(job, run):.1f} images/s", file=sys.stderr)
        if args.out:
            record.write(args.out, run)
            print(f"record written to {args.out}", file=sys.stderr)
        if args.json:
            print(json.dumps(_summary(job, run, prediction)))
    return 0


def _images_per_s(job: Training | Inference, run: record.RunRecord) -> float:
    """Samples a second of an inference, reading them aside."""
    return job.measured.samples / float(run.iteration_s.max(axis=0).sum())


def _summary(
    job: Training | Inference, run: record.RunRecord, prediction: Prediction
) -> dict[str, object]:
    """What ``--json`` prints."""
    plan, measured = job.plan, job.measured
    times = sorted(run.iteration_s.max(axis=0)[run.measured])
    middle = times[len(times) // 2]
    out: dict[str, object] = {
        "network": plan.network.name, "strategy": plan.strategy,
        "ranks": plan.ranks, "batch": plan.batch,
        "test_accuracy": _known(measured.test_accuracy), "test_loss": _known(measured.test_loss),
    }
    if isinstance(job, Inference):
        return out | {
            "samples": measured.samples, "images_per_s": _images_per_s(job, run),
            "measured_pass_s": middle, "predicted_pass_s": prediction.iteration_s,
        }
    return out | {
        "steps": job.steps, "loss": measured.loss[-1], "losses": measured.loss,
        "train_accuracy": _known(measured.train_accuracy),
        "measured_iteration_s": middle, "predicted_iteration_s": prediction.iteration_s,
    }


def _read(args: argparse.Namespace) -> tuple[plans.Plan, Machine, Backend, JobOptions]:
    """Everything that can be wrong before a rank knows of the others."""
    check_direct(args)
    given = {name: getattr(args, name) for name in TRAINING if getattr(args, name) is not None}
    if args.forward_only and given:
        raise InputError(f"--{next(iter(given))} is of a training, but --forward-only does not "
                         "train; leave one of them out")
    epochs, steps, checkpoint, rate, momentum, decay = (TRAINING | given).values()
    if epochs < 1 or steps < 0:
        raise InputError(
            f"--epochs {epochs} --steps {steps}: a training has at least one epoch or step")
    for path in (args.out, checkpoint):
        if path and not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise InputError(f"cannot write {path}: its folder is missing or not writable; make "
                             "it, or choose another place")
    plan = plans.load(args.plan)
    require(plan.network.build(), plan)
    machine = files.load(args.machine) if args.machine else files.from_dict(plan.machine)
    options = JobOptions(args.data, epochs, steps, checkpoint, args.resume, args.seed,
                      SGD(rate, momentum, decay), args.direct)
    return plan, machine, backend(args.device), options


def _known(values: list[float]) -> float | None:
    """The last value, or None where it is unknown."""
    return values[-1] if values and values[-1] == values[-1] else None
