"""Command-line options of training and inference that the ranks need."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcpar.comm.device_options import GraphOptions
from hpcpar.data.augment import AugmentOptions
from hpcpar.options import checks
from hpcpar.options.checks import duration_s, natural, path, positive
from hpcpar.options.fields import OptionGroup, flag, option, required
from hpcpar.options.output_files import CHECKPOINT
from hpcpar.runtime.optimizer import SGD


@dataclass(frozen=True)
class SaveInterval:
    """Time between checkpoints, in iterations or seconds; an epoch if both are 0."""

    steps: int = 0
    seconds: float = 0.0

    def may_end(self, step: int, epoch_done: bool) -> bool:
        """Whether an interval ends after iteration `step`; if it is a time, it may."""
        return bool(self.seconds) or (step % self.steps == 0 if self.steps else epoch_done)


def save_interval(value: str | SaveInterval) -> SaveInterval:
    """Parses ``500steps``, ``10min``, ..."""
    if isinstance(value, SaveInterval):
        return value
    match = re.fullmatch(r"(\d+)\s*steps?", value.strip())
    if match is None:
        return SaveInterval(seconds=duration_s(value))
    return SaveInterval(steps=positive(match[1]))


@dataclass(frozen=True, kw_only=True)
class LengthOptions(OptionGroup, section="training"):
    """Length of the training, including the part before a resume."""

    epochs: int = option(1, positive, "length of the training in epochs", "N", first=True)
    steps: int = option(
        0, natural, "length of the training in iterations (default: --epochs)", "N", first=True)


@dataclass(frozen=True, kw_only=True)
class SavingOptions(OptionGroup, section="job"):
    """When a training run saves its state, and when it stops."""

    checkpoint: str = option("", CHECKPOINT, "write weights and optimizer state here (HDF5)",
                             "FILE.h5", first=True)
    every: SaveInterval = option(
        SaveInterval(), save_interval, "interval: 500steps, 10min, 90s, 2h (default: every epoch)",
        "N steps|N min", names=("--checkpoint-every",), needs="checkpoint")
    keep: int = option(
        1, positive, "number of checkpoints to keep; older ones are named NAME.step500.h5", "N",
        needs="checkpoint")
    time_limit: float | None = option(
        None, duration_s, "save and stop before this time is over: 90s, 30min, 2h (default: the "
        "Slurm job's limit)", "N min", first=True)


@dataclass(frozen=True, kw_only=True)
class JobOptions(SavingOptions, SGD, LengthOptions, GraphOptions, AugmentOptions, section="job"):
    """Options of a run."""

    data: str = required(path, "data file from hpcpar data (HDF5)", "FILE.h5",
                         section="network and data")
    seed: int = option(0, checks.seed, "seed of initial weights, shuffling and dropout", "N",
                       section="training")
    resume: str = option(
        "", path, "resume from this checkpoint of any plan, and continue the record of --out",
        "CHECKPOINT", first=True)
    partial: bool = flag("resume from the intact part of a damaged checkpoint", needs="resume")
    overwrite: bool = flag("replace a checkpoint or record of another training run", first=True)
