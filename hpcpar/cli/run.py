"""``mpiexec -n P hpcpar run``: trains or infers under a plan, and records the run."""

from __future__ import annotations

import datetime
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from hpcpar.api.sources import plan_and_machine
from hpcpar.calibrate import provenance
from hpcpar.cli.run_options import EMULATE, RunCommand, check_training
from hpcpar.comm import cards
from hpcpar.comm.cores import NodeCores, fullest_node
from hpcpar.comm.device_options import kernels_of_all
from hpcpar.comm.world import World, world
from hpcpar.diagnose.processor import slowdowns
from hpcpar.io.background_writer import BackgroundWriter
from hpcpar.io.files import lock
from hpcpar.io.hdf5 import check
from hpcpar.kernels import backend
from hpcpar.kernels.interface import Backend
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.plan import plan as plans
from hpcpar.prediction.prediction import Prediction
from hpcpar.prediction.price import price
from hpcpar.process.signals import STATUS, StopRequest, ignore
from hpcpar.report.metrics import Metrics
from hpcpar.report.progress import ProgressBar, RunProgress
from hpcpar.report.tables import say, show_line
from hpcpar.report.tables.answer import of_run, plural
from hpcpar.runtime.emulate import emulate
from hpcpar.schedule.runnable import (
    require,
    require_device,
    require_executed,
    require_own_training,
)
from hpcpar.simulation.simulate import Simulator
from hpcpar.train import record_file, run_record
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.collect import Recorder
from hpcpar.train.inference import Inference
from hpcpar.train.job import EpochEnd
from hpcpar.train.loop import Progress, Training


def main(args: RunCommand) -> int:
    with StopRequest(args.time_limit or 0.0) as stop, ExitStack() as locks:
        w = world()
        with w.guard():
            w.agree(lambda: _lock(args, w, locks))
            return _run(args, w, stop)


def _lock(args: RunCommand, w: World, locks: ExitStack) -> None:
    """Locks this job's files against other jobs."""
    for path, what in ((args.checkpoint, "checkpoint"), (args.out, "run record")):
        if path and w.rank == 0:
            locks.enter_context(lock(path, what))


def _check_files(args: RunCommand, w: World) -> None:
    """Checks files from unknown sources, and files that the run would replace."""
    if w.rank == 0:
        check_training(args)
        check([path for path in (args.data, args.resume) if path], "file",
              "use a file from hpcpar data or hpcpar run --checkpoint", args.allow_external)


def _run(args: RunCommand, w: World, stop: StopRequest) -> int:
    w.agree(lambda: _check_files(args, w))
    of_all = kernels_of_all(w, args.kernels)
    plan, machine, kernels = w.agree(lambda: _read(args, w, of_all))
    network = plan.network.build()
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    kind = Inference if args.forward_only else Training
    job = kind(w, network, plan, kernels, args)
    if _is_done(args, job):
        job.close()
        return 0
    metrics = w.agree(lambda: _metrics(args, job) if w.rank == 0 else Metrics())
    if args.device == EMULATE:
        emulate(job.executor, Simulator(network, plan, machine))
    prediction = price(network, plan, machine, samples=job.measured.samples,
                       training=not args.forward_only)
    node = fullest_node(w, args.device)
    lines = ProgressBar(w.rank)
    lines.say(_heading(args, job))
    lines.say(f"convolutions: {kernels.versions['convolutions']}")
    for note in _notes(args, job, machine, kernels, node):
        lines.say(f"note: {note}")
    recorder = Recorder(w, job, args.device, node, {
        "prediction": prediction.to_json(steps=True), "machine": files.to_dict(machine),
        "started": started, "command": " ".join(sys.argv),
        "training": job.identity if isinstance(job, Training) else ""}, _earlier(args, job))
    progress = RunProgress(lines, prediction.iteration_s)
    with lines:
        if isinstance(job, Training):
            save = partial(recorder.saved, args.out) if args.out else None
            with closing(metrics):
                reason = job.run(_report_to(metrics, progress), stop, save)
        else:
            reason = job.run(progress.inference, stop)
    ignore()  # what later signals ask for is done
    job.close()
    if isinstance(job, Training) or not reason:
        replays = job.executor.replays
        cautions = [*kernels.cautions, *(replays.cautions if replays is not None else [])]
        _report(args, job, recorder, prediction, cautions, lines)
    if not reason:
        return 0
    lines.say(f"stopped by {reason}{_remedy(args, job)}")
    return STATUS


def _is_done(args: RunCommand, job: Training | Inference) -> bool:
    """Whether the resumed training run has no steps left; rank 0 says so."""
    if isinstance(job, Inference) or job.start < job.steps:
        return False
    if job.world.rank == 0:
        say(f"{args.resume} is already at step {job.start} of {job.steps}: nothing to do; "
            "train longer with --epochs or --steps")
    return True


def _heading(args: RunCommand, job: Training | Inference) -> str:
    """The run in one line."""
    plan, w = job.plan, job.world
    count = f"{job.loader.batches_per_epoch} forward passes"
    if isinstance(job, Training):
        count = f"{job.steps - job.start} iterations"
    return (f"{plan.network.name} on {plural(w.size, 'rank')} ({plan.strategy}), "
            f"batch {plan.batch}, {job.measured.samples} samples, {count}, {args.device}, "
            f"{w.library}")


def _notes(args: RunCommand, job: Training | Inference, machine: Machine, kernels: Backend,
           node: NodeCores) -> list[str]:
    """Cautions before the run. Collective."""
    w = job.world
    notes = [f"not restored: {fault}" for fault in job.not_restored]
    notes += [str(node)] if node.shared else []
    notes += (["computing is emulated: loss and accuracy are meaningless"]
              if args.device == EMULATE else args.math_notes(job.plan.precision))
    notes += [*cards.shared(w, kernels.card), *cards.differences(w, kernels.versions)]
    measured = provenance.origin(machine.quality, f"the plan's machine {machine.name}")
    notes += measured.notes(kernels.versions) if measured is not None else []
    return notes + (slowdowns(node.ranks) if w.rank == 0 and args.device == "cpu" else [])


def _report(args: RunCommand, job: Training | Inference, recorder: Recorder,
            prediction: Prediction, cautions: Iterable[str], lines: ProgressBar) -> None:
    """Writes the record and shows the result. Collective."""
    scale = job.executor.loss_scale
    if scale is not None and scale.state.skipped:
        cautions = [f"the loss scale is {scale.state.scale:g}, and gradients overflowed float16 in "
                    f"{plural(scale.state.skipped, 'iteration')}, without an update", *cautions]
    for caution in (*_unevaluated(args, job), *cautions):
        lines.say(f"note: {caution}")
    run = recorder.collect()
    if run is None:
        return
    if args.out and isinstance(job, Inference):
        writer = BackgroundWriter()
        writer.submit(partial(record_file.write, args.out, run))
        writer.finish()
    if args.out:
        lines.say(f"record written to {args.out}")
    summary = _summary(job, run, prediction)
    args.show(lambda: summary,
              lambda: [{k: v for k, v in summary.items() if k != "losses"}],
              lambda: show_line(of_run(summary)))


def _unevaluated(args: RunCommand, job: Training | Inference) -> list[str]:
    """The caution after a training run that stopped before its last evaluation."""
    if isinstance(job, Inference) or not job.unevaluated:
        return []
    return [f"stopped by {job.unevaluated} after the last step, before the held-out part was "
            "evaluated: evaluate it with --forward-only --resume "
            f"{args.checkpoint or 'CHECKPOINT'}"]


def _remedy(args: RunCommand, job: Training | Inference) -> str:
    """The step at which a training run stopped, and how to continue; empty for an inference."""
    if isinstance(job, Inference):
        return ""
    remedy = (f"continue with --resume {args.checkpoint}" if args.checkpoint
              else "its state is lost without --checkpoint")
    return f" after step {job.step} of {job.steps}; {remedy}"


def _metrics(args: RunCommand, job: Training | Inference) -> Metrics:
    """The files of metrics; inference has none."""
    classes = job.pixel_classes if isinstance(job, Training) else 0
    return Metrics(args.metrics, args.tensorboard, classes, job.start + 1,
                   job.plan.formats.scaled)


def _report_to(metrics: Metrics, progress: RunProgress) -> Callable[[Progress], None]:
    """A function that adds each iteration to the metrics, and shows it."""

    def report(now: Progress) -> None:
        metrics.add(now)
        progress.training(now)

    return report


def _earlier(args: RunCommand, job: Training | Inference) -> run_record.RunRecord | None:
    """The record that a resumed training continues, on rank 0."""
    if job.world.rank or not args.out or not args.resume or not isinstance(job, Training):
        return None
    return record_file.continued(
        args.out, plans.to_json(job.plan), run_record.steps_of(job.schedule),
        job.resumed.training if job.resumed else "", job.start,
        job.start // job.loader.batches_per_epoch)


def _summary(job: Training | Inference, run: run_record.RunRecord,
             prediction: Prediction) -> dict[str, Any]:
    """The document of ``--json``."""
    plan, measured = job.plan, job.measured
    end = measured.epochs.values[-1] if measured.epochs.values else EpochEnd()
    median_s = statistics.median_high(run.iteration_s.max(axis=0)[run.measured].tolist())
    counts = {"train_pixels": end.train_counts, "test_pixels": end.test_counts}
    out: dict[str, Any] = {name: found.to_json() for name, pixels in counts.items()
                           if (found := ClassCounts.of(pixels))}
    out |= {
        "network": plan.network.name, "strategy": plan.strategy,
        "ranks": plan.ranks, "batch": plan.batch,
        "test_accuracy": _number(end.test_accuracy), "test_loss": _number(end.test_loss),
    }
    if isinstance(job, Inference):
        passes_s = float(run.iteration_s.max(axis=0).sum())  # without the time to read samples
        return out | {
            "samples": measured.samples, "images_per_s": run.samples / passes_s,
            "measured_pass_s": median_s, "predicted_pass_s": prediction.iteration_s,
        }
    return out | {
        "steps": job.step, "loss": job.last_loss, "losses": measured.losses, **_scale(job),
        "train_accuracy": _number(end.train_accuracy),
        "measured_iteration_s": median_s, "predicted_iteration_s": prediction.iteration_s,
    }


def _scale(job: Training) -> dict[str, float]:
    """The loss scale at the end, and the iterations whose update it skipped; empty without one."""
    if job.scale is None:
        return {}
    return {"loss_scale": job.scale.state.scale, "skipped_updates": job.scale.state.skipped}


def _read(args: RunCommand, w: World, kernels: str) -> tuple[plans.Plan, Machine, Backend]:
    """Reads and checks the inputs, without communication."""
    plan, machine = plan_and_machine(args.plan, args.machine)
    require_executed(plan.framework)
    require_device(plan, args.device)
    network = plan.network.build()
    if not args.forward_only:
        require_own_training(network)
    require(network, plan, not args.forward_only)
    return plan, machine, backend(
        "cpu" if args.device == EMULATE else args.device, args.math_for(plan.precision),
        w.local_rank, kernels, machine.convolutions)


def _number(value: float) -> float | None:
    """The value; None if it was not measured."""
    return None if math.isnan(value) else value
