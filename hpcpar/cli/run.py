"""``mpiexec -n P hpcpar run``: train under a plan and record it."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time

from hpcpar.cli.launch import limit_threads

limit_threads()

from hpcpar.comm.world import World, world  # noqa: E402
from hpcpar.cost.price import price  # noqa: E402
from hpcpar.errors import InputError  # noqa: E402
from hpcpar.kernels import backend  # noqa: E402
from hpcpar.kernels.interface import Backend  # noqa: E402
from hpcpar.machine import files  # noqa: E402
from hpcpar.machine.model import Machine  # noqa: E402
from hpcpar.plan import plan as plans  # noqa: E402
from hpcpar.train import collect, record  # noqa: E402
from hpcpar.train.loop import Options, Progress, Training  # noqa: E402
from hpcpar.train.optimizer import SGD  # noqa: E402
from hpcpar.train.supported import require  # noqa: E402


def add(subparsers: argparse._SubParsersAction) -> None:
    """The options of the command."""
    p = subparsers.add_parser("run", help="train under a plan on real MPI ranks, and record it")
    p.add_argument("--plan", required=True, help="plan file, from: hpcpar plan -o")
    p.add_argument("--data", required=True, help="HDF5 dataset, from: hpcpar data")
    p.add_argument("--epochs", type=int, default=1, help="length of the training (default 1)")
    p.add_argument("--steps", type=int, default=0, help="length in iterations, instead of --epochs")
    p.add_argument("--out", default="", help="write the record of the run here (HDF5)")
    p.add_argument("--checkpoint", default="", help="write weights and state here after every epoch (HDF5)")
    p.add_argument("--resume", default="", help="go on from this checkpoint, made under any plan")
    p.add_argument("--rate", type=float, default=0.01, help="learning rate (default 0.01)")
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--decay", type=float, default=0.0005, help="weight decay (default 0.0005)")
    p.add_argument("--seed", type=int, default=0, help="fixes initial weights, shuffling and dropout")
    p.add_argument("--machine", default="", help="machine that the prediction in the record is for (default: the plan's)")
    p.add_argument("--device", default="cpu", help="cpu or gpu")
    p.add_argument("--direct", action="store_true", help="hand GPU buffers to MPI (needs a GPU-aware library)")
    p.add_argument("--json", action="store_true", help="print a summary as JSON")


class _Teller:
    """Progress on rank 0: a line per epoch, and on a terminal the running iteration."""

    def __init__(self, w: World, predicted_s: float) -> None:
        self.quiet = w.rank != 0
        self.live = sys.stderr.isatty()
        self.predicted_s = predicted_s
        self.last = 0.0
        self.times: list[float] = []

    def __call__(self, now: Progress) -> None:
        if self.quiet:
            return
        self.times.append(now.iteration_s)
        if now.epoch_done:
            parts = [f"epoch {now.epoch}/{now.epochs}", f"step {now.step}/{now.steps}", f"loss {now.loss:.4f}"]
            if now.train_accuracy is not None:
                parts.append(f"train {now.train_accuracy:.2%}")
            if now.test_accuracy is not None:
                parts.append(f"test {now.test_accuracy:.2%}")
            middle = sorted(self.times)[len(self.times) // 2]
            parts.append(f"{middle * 1e3:.2f} ms an iteration (predicted {self.predicted_s * 1e3:.2f})")
            self.times = []
            print(("\r\x1b[K" if self.live else "") + "  ".join(parts), file=sys.stderr, flush=True)
        elif self.live and time.monotonic() - self.last > 0.2:
            self.last = time.monotonic()
            line = f"\r\x1b[Kepoch {now.epoch}/{now.epochs}  step {now.step}/{now.steps}  loss {now.loss:.4f}"
            print(line, end="", file=sys.stderr, flush=True)


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    w = world()
    with w.guard():
        return _run(args, w)


def _run(args: argparse.Namespace, w: World) -> int:
    plan, machine, kernels, options = w.agree(lambda: _read(args))
    network = plan.network.build()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    training = Training(w, network, plan, kernels, options)
    prediction = price(network, plan, machine, samples=training.loader.samples)
    if w.rank == 0:
        print(
            f"{plan.network.name} on {w.size} ranks ({plan.strategy}), batch {plan.batch}, {training.loader.samples} samples, "
            f"{training.steps - training.start} iterations, {args.device}, {w.library}",
            file=sys.stderr,
        )
    measured = training.run(_Teller(w, prediction.iteration_s))
    training.close()
    run = collect.record(
        w, training, measured, args.device, prediction.to_json(steps=True), files.to_dict(machine), started, " ".join(sys.argv)
    )
    if run is not None:
        if args.out:
            record.write(args.out, run)
            print(f"record written to {args.out}", file=sys.stderr)
        if args.json:
            times = sorted(run.iteration_s.max(axis=0)[run.measured])
            print(json.dumps({
                "network": plan.network.name, "strategy": plan.strategy, "ranks": plan.ranks, "batch": plan.batch, "steps": training.steps,
                "loss": measured.loss[-1], "losses": measured.loss, "test_accuracy": _known(measured.test_accuracy),
                "train_accuracy": _known(measured.train_accuracy),
                "measured_iteration_s": times[len(times) // 2], "predicted_iteration_s": prediction.iteration_s,
            }))
    return 0


def _read(args: argparse.Namespace) -> tuple[plans.Plan, Machine, Backend, Options]:
    """Everything that can be wrong before a rank knows of the others."""
    if args.epochs < 1 or args.steps < 0:
        raise InputError(f"--epochs {args.epochs} --steps {args.steps}: a training has at least one epoch or step")
    for path in (args.out, args.checkpoint):
        if path and not os.access(os.path.dirname(path) or ".", os.W_OK):
            raise InputError(f"cannot write {path}: its folder is missing or not writable; make it, or choose another place")
    plan = plans.load(args.plan)
    require(plan.network.build(), plan)
    machine = files.load(args.machine) if args.machine else files.from_dict(plan.machine)
    sgd = SGD(args.rate, args.momentum, args.decay)
    options = Options(args.data, args.epochs, args.steps, args.checkpoint, args.resume, args.seed, sgd, args.direct)
    return plan, machine, backend(args.device), options


def _known(values: list[float]) -> float | None:
    """The last value, or None where it is unknown."""
    return values[-1] if values and values[-1] == values[-1] else None
