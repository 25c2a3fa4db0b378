"""The options of ``hpcpar run``, and checks of their combinations and files."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.cli.options import ExternalOptions, ResultOptions, StartOptions
from hpcpar.comm.device_options import DEVICES
from hpcpar.errors import InputError
from hpcpar.options import other_names
from hpcpar.options.checks import OneOf, duration_s, path
from hpcpar.options.fields import OUT, flag, option, options_of, required, words
from hpcpar.options.output_files import CHECKPOINT, METRICS, RECORD, holds_something, same_file
from hpcpar.runtime.optimizer import SGD
from hpcpar.train.job_options import JobOptions, LengthOptions, SavingOptions

#: A device that only `run` has: ranks sleep instead of computing.
EMULATE = "emulate"


@dataclass(frozen=True, kw_only=True)
class RunCommand(ResultOptions, ModuleOptions, JobOptions, ExternalOptions, StartOptions,
                 section="job"):
    example = "hpcpar run -n 2 --plan plan.json --data digits.h5 --epochs 2 --out run.h5"
    plan: str = required(path, "plan file from hpcpar plan -o", "plan.json", section="plan")
    machine: str = option(
        "", path, "machine for the prediction in the record (default: the plan's)",
        "NAME|FILE", section="machine")
    device: str = option(
        "cpu", OneOf((*DEVICES, EMULATE), other_names.DEVICES), "where ranks compute; emulate: "
        "ranks sleep for the machine file's compute times, and send real messages",
        section="machine", first=True)
    forward_only: bool = flag(
        "do not train: run forward once over the held-out data, or over all samples if none are "
        "held out, with the weights of --resume (or initial weights)", section="training")
    elastic: bool = flag(
        "start the job, and if ranks are lost, continue with the others (needs --checkpoint)",
        needs="checkpoint")
    elastic_return: float = option(
        60.0, duration_s, "assume that lost ranks are back after this time (default 60s)", "N s")
    out: str = option("", RECORD, "write the record of the run here (HDF5)", "FILE.h5",
                      section="output", **OUT)
    metrics: str = option(
        "", METRICS, "append every epoch's loss, accuracy, Dice, rate and time to this table",
        "FILE.csv", section="output")
    tensorboard: str = option(
        "", path, "write these numbers, for every iteration too, as TensorBoard event files in "
        "this folder (needs the extra tensorboard)", "FOLDER", section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == EMULATE and (self.resume or self.checkpoint):
            raise InputError("--device emulate trains nothing: drop --checkpoint and --resume")

    def check_given(self, names: Collection[str]) -> None:
        super().check_given(names)
        training = [words(f)[-1] for group in (LengthOptions, SavingOptions, SGD)
                    for f in options_of(group) if f.name in names]
        training += [f"--{name}" for name in ("metrics", "tensorboard") if name in names]
        if self.forward_only and training:
            raise InputError(f"{training[0]} has no effect with --forward-only; drop one of them")


def check_training(args: RunCommand) -> None:
    """Checks that a run does not replace another run's checkpoint or record, unless it may.

    One rank of a job calls it.

    Raises
    ------
    InputError
        The run would replace one.
    """
    for kind, file in ((CHECKPOINT, args.checkpoint), (RECORD, args.out)):
        if file:
            kind.check_content(file)
    resumes = args.resume and not args.forward_only
    if args.overwrite:
        return
    if args.checkpoint and holds_something(args.checkpoint) and not (
            resumes and same_file(args.resume, args.checkpoint)):
        raise InputError(f"checkpoint {args.checkpoint} exists; resume from it with --resume "
                         f"{args.checkpoint}, replace it with --overwrite, or choose another name")
    # a resumed run moves another run's record aside
    if args.out and not resumes and recorded_by(args.out) and not recorded_by(args.out).endswith(
            " ".join(["", *sys.argv[1:]])):
        raise InputError(f"run record {args.out} comes from another command; replace it with "
                         "--overwrite, or choose another name")


def recorded_by(file: str) -> str:
    """The command of the run that a record measures; empty for a simulation, and for no file."""
    from hpcpar.io.hdf5 import attributes, open_hdf5

    if not holds_something(file):
        return ""
    with open_hdf5(file, RECORD.what, "choose another name") as f:
        return str(attributes(f, f"run record {file}", "choose another name").get("command", ""))
