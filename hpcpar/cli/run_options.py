"""The options of ``hpcpar run``, and what they need of each other and of files."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass

from hpcpar.api.options import ModuleOptions
from hpcpar.checks import OneOf, duration_s, path
from hpcpar.cli.options import ExternalOptions, ResultOptions, StartOptions
from hpcpar.comm.device_options import DEVICES
from hpcpar.errors import InputError
from hpcpar.option_fields import flag, option, options_of, required, words
from hpcpar.output_files import CHECKPOINT, METRICS, RECORD, holds_something, same_file
from hpcpar.runtime.optimizer import SGD
from hpcpar.train.job_options import JobOptions, LengthOptions, SavingOptions

#: A device of `run` alone: ranks sleep instead of computing.
EMULATE = "emulate"


@dataclass(frozen=True, kw_only=True)
class RunCommand(ResultOptions, ModuleOptions, JobOptions, ExternalOptions, StartOptions,
                 section="job"):
    """The options of the command.

    Raises
    ------
    InputError
        Some of them do not go together.
    """

    example = "hpcpar run -n 2 --plan plan.json --data digits.h5 --epochs 2 --out run.h5"
    plan: str = required(path, "plan file, from: hpcpar plan -o", "plan.json", section="plan")
    machine: str = option(
        "", path, "machine that the prediction in the record is for (default: the plan's)",
        "NAME|FILE", section="machine")
    device: str = option(
        "cpu", OneOf((*DEVICES, EMULATE)), "where ranks compute; emulate: they sleep as long as "
        "the machine file says, messages are real", section="machine")
    forward_only: bool = flag(
        "do not train: once over the held-out part of the data, or all samples where there is "
        "none, with the weights of --resume (or initial ones)", section="training")
    overwrite: bool = flag("replace the checkpoint and the record of another training")
    elastic: bool = flag(
        "start the job, and go on with the ranks that are left when some are lost (needs "
        "--checkpoint)", needs="checkpoint")
    elastic_return: float = option(
        60.0, duration_s, "lost ranks count as back after this time (default 60s)", "N s")
    out: str = option("", RECORD, "write the record of the run here (HDF5)", "FILE.h5",
                      section="output")
    metrics: str = option(
        "", METRICS, "append loss, accuracies, Dice, rate and time of every epoch to this table",
        "FILE.csv", section="output")
    tensorboard: str = option(
        "", path, "write these numbers, and those of every iteration, to event files of "
        "TensorBoard in this folder (needs the extra tensorboard)", "FOLDER", section="output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == EMULATE and (self.resume or self.checkpoint):
            raise InputError("--device emulate trains nothing: drop --checkpoint and --resume")

    def check_given(self, names: Collection[str]) -> None:
        super().check_given(names)
        of_training = [words(f)[-1] for group in (LengthOptions, SavingOptions, SGD)
                       for f in options_of(group) if f.name in names]
        of_training += [f"--{name}" for name in ("metrics", "tensorboard") if name in names]
        if self.forward_only and of_training:
            raise InputError(f"{of_training[0]} has no effect with --forward-only; drop one of "
                             "them")


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
