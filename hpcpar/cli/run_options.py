"""The options of ``hpcpar run``, and what they need of each other and of files."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, fields

from hpcpar import checks
from hpcpar.api.options import DEVICES, GpuOptions
from hpcpar.checks import (
    OneOf,
    ValueRefused,
    duration_s,
    magnitude,
    natural,
    part,
    path,
    positive,
)
from hpcpar.cli.options import AugmentOptions, ExternalOptions, ResultOptions, StartOptions
from hpcpar.cli.output_files import CHECKPOINT, RECORD, holds_something, same_file
from hpcpar.comm.transport import Transport
from hpcpar.errors import InputError
from hpcpar.option_fields import OptionGroup, flag, option, required
from hpcpar.runtime.optimizer import SGD, WARMUP, BatchScaling, RateSchedule
from hpcpar.train.job import Interval, JobOptions

#: A device of `run` alone: ranks sleep instead of computing.
EMULATE = "emulate"


def _schedule(text: str) -> str:
    """The name of a schedule of the learning rate; after ``step:``, epochs."""
    name, colon, epochs = text.partition(":")
    OneOf(RateSchedule)(name)
    if colon and name != RateSchedule.STEP:
        raise ValueRefused(f"'{text}': only step takes a number, as in step:30")
    return f"{name}:{positive(epochs)}" if colon else name


def _interval(value: str | Interval) -> Interval:
    """Iterations, or a time."""
    if isinstance(value, Interval):
        return value
    found = re.fullmatch(r"(\d+)\s*steps?", value.strip())
    if found is None:
        return Interval(seconds=duration_s(value))
    return Interval(steps=positive(found[1]))


@dataclass(frozen=True, kw_only=True)
class LengthOptions(OptionGroup, section="training"):
    """How long a training is."""

    epochs: int = option(JobOptions.epochs, positive, "length of the training", "N")
    steps: int = option(
        JobOptions.steps, natural, "length in iterations, instead of --epochs (default: --epochs)",
        "N")


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(OptionGroup, section="training"):
    """How weights are updated: the numbers of `SGD`."""

    rate: float = option(
        SGD.rate, magnitude, "learning rate after the warm-up; the optimizer belongs to the plan: "
        "hpcpar plan --optimizer", "RATE")
    schedule: str = option(
        SGD.schedule.value, _schedule, "how the rate falls: not at all; by 10 every "
        f"{SGD.step_epochs} epochs (step:N: every N); as half a cosine; by 6.3 after each quarter "
        "of the training", "|".join(RateSchedule))
    warmup: int | None = option(
        None, natural, "iterations in which the rate grows from 0 (default: a quarter of an "
        f"epoch, at most {WARMUP})", "N")
    momentum: float = option(SGD.momentum, part, "of SGD, or Adam's first beta", "SHARE")
    decay: float = option(SGD.decay, magnitude, "weight decay", "RATE")
    base_batch: int | None = option(
        None, positive, "samples of an update that --rate and --decay are meant for (default: as "
        "many as there are); where there are k times as many, the rate is k times as large. "
        "Layers with a pass for each rank (owt-b, owt-c) count those of a pass", "N")
    scaling: str = option(
        SGD.scaling.value, OneOf(BatchScaling), "with --base-batch, rate times k, or rate and "
        "decay times sqrt(k)", needs="base_batch")

    def sgd(self) -> SGD:
        """These numbers."""
        name, _, epochs = self.schedule.partition(":")
        same = {f.name: getattr(self, f.name) for f in fields(UpdateOptions)}
        return SGD(**same | {
            "schedule": RateSchedule(name), "scaling": BatchScaling(self.scaling),
            "step_epochs": int(epochs or SGD.step_epochs)})


@dataclass(frozen=True, kw_only=True)
class SavingOptions(OptionGroup, section="job"):
    """When a training saves its state, and stops."""

    checkpoint: str = option("", CHECKPOINT, "write weights and state here (HDF5)", "FILE.h5")
    every: Interval = option(
        Interval(), _interval, "how often: 500steps, 10min, 90s, 2h (default: after every epoch)",
        "N steps|N min", names=("--checkpoint-every",), needs="checkpoint")
    keep: int = option(
        JobOptions.keep, positive, "checkpoints that stay: the older ones beside the newest, as "
        "NAME.step500.h5", "N", needs="checkpoint")
    time_limit: float | None = option(
        None, duration_s, "stop in time: 90s, 30min, 2h (default: when the Slurm job ends)",
        "N min")


@dataclass(frozen=True, kw_only=True)
class RunCommand(ResultOptions, SavingOptions, UpdateOptions, LengthOptions, GpuOptions,
                 AugmentOptions, ExternalOptions, StartOptions, section="job"):
    """The options of the command.

    Raises
    ------
    InputError
        Some of them do not go together.
    """

    example = "hpcpar run -n 2 --plan plan.json --data digits.h5 --epochs 2 --out run.h5"
    plan: str = required(path, "plan file, from: hpcpar plan -o", "plan.json", section="plan")
    data: str = required(path, "HDF5 dataset, from: hpcpar data", "FILE.h5",
                         section="network and data")
    machine: str = option(
        "", path, "machine that the prediction in the record is for (default: the plan's)",
        "NAME|FILE", section="machine")
    device: str = option(
        "cpu", OneOf((*DEVICES, EMULATE)), "where ranks compute; emulate: they sleep as long as "
        "the machine file says, messages are real", section="machine")
    forward_only: bool = flag(
        "do not train: once over the held-out part of the data, or all samples where there is "
        "none, with the weights of --resume (or initial ones)", section="training")
    seed: int = option(
        JobOptions.seed, checks.seed, "fixes initial weights, shuffling and dropout", "N",
        section="training")
    resume: str = option(
        "", path, "go on from this checkpoint, made under any plan; continue the record of --out",
        "CHECKPOINT")
    partial: bool = flag("resume from what is left of a damaged checkpoint", needs="resume")
    overwrite: bool = flag("replace the checkpoint and the record of another training")
    elastic: bool = flag(
        "start the job, and go on with the ranks that are left when some are lost (needs "
        "--checkpoint)", needs="checkpoint")
    elastic_return: float = option(
        60.0, duration_s, "lost ranks count as back after this time (default 60s)", "N s")
    out: str = option("", RECORD, "write the record of the run here (HDF5)", "FILE.h5",
                      section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        of_training = self.given(LengthOptions, SavingOptions, UpdateOptions)
        if self.forward_only and of_training:
            raise InputError(f"{of_training[0]} has no effect with --forward-only; drop one of "
                             "them")
        if self.device == EMULATE and (self.resume or self.checkpoint):
            raise InputError("--device emulate trains nothing: drop --checkpoint and --resume")

    def job(self) -> JobOptions:
        """The options of the job on the ranks."""
        same = {f.name: getattr(self, f.name) for f in fields(JobOptions)}
        return JobOptions(**same | {"sgd": self.sgd(), "transport": Transport(self.transport)})


def check_training(args: RunCommand) -> None:
    """Checks that a run replaces no checkpoint and no record of another one, unless it is asked
    to. Of a job, one rank needs to call it.

    Raises
    ------
    InputError
        It would.
    """
    for kind, file in ((CHECKPOINT, args.checkpoint), (RECORD, args.out)):
        if file:
            kind.check_content(file)
    goes_on = args.resume and not args.forward_only
    if args.overwrite:
        return
    if args.checkpoint and holds_something(args.checkpoint) and not (
            goes_on and same_file(args.resume, args.checkpoint)):
        raise InputError(f"checkpoint {args.checkpoint} exists; go on from it with --resume "
                         f"{args.checkpoint}, replace it with --overwrite, or choose another name")
    # a training that goes on moves another one's record aside
    if args.out and holds_something(args.out) and not goes_on and _is_of_another(args.out):
        raise InputError(f"run record {args.out} comes from another command; replace it with "
                         "--overwrite, or choose another name")


def _is_of_another(file: str) -> bool:
    """True for a record unless the same command has made it, or a simulation."""
    from hpcpar.hdf5 import attributes, open_hdf5

    with open_hdf5(file, RECORD.what, "choose another name") as f:
        made_by = str(attributes(f, f"run record {file}", "choose another name").get("command", ""))
    return bool(made_by) and not made_by.endswith(" ".join(["", *sys.argv[1:]]))
