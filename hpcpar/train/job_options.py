"""The options of a training, or an inference, on the ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpcpar import checks
from hpcpar.checks import duration_s, natural, path, positive
from hpcpar.comm.device_options import GpuOptions
from hpcpar.data.augment import AugmentOptions
from hpcpar.option_fields import OptionGroup, flag, option, required
from hpcpar.output_files import CHECKPOINT
from hpcpar.runtime.optimizer import SGD


@dataclass(frozen=True)
class Interval:
    """A number of iterations, or seconds; an epoch where both are 0."""

    steps: int = 0
    seconds: float = 0.0


def interval(value: str | Interval) -> Interval:
    """Iterations, or a time."""
    if isinstance(value, Interval):
        return value
    found = re.fullmatch(r"(\d+)\s*steps?", value.strip())
    if found is None:
        return Interval(seconds=duration_s(value))
    return Interval(steps=positive(found[1]))


@dataclass(frozen=True, kw_only=True)
class LengthOptions(OptionGroup, section="training"):
    """The length of the whole training, resumed parts included."""

    epochs: int = option(1, positive, "length of the training", "N")
    steps: int = option(
        0, natural, "length in iterations, instead of --epochs (default: --epochs)", "N")


@dataclass(frozen=True, kw_only=True)
class SavingOptions(OptionGroup, section="job"):
    """When a training saves its state, and stops."""

    checkpoint: str = option("", CHECKPOINT, "write weights and state here (HDF5)", "FILE.h5")
    every: Interval = option(
        Interval(), interval, "how often: 500steps, 10min, 90s, 2h (default: after every epoch)",
        "N steps|N min", names=("--checkpoint-every",), needs="checkpoint")
    keep: int = option(
        1, positive, "checkpoints that stay: the older ones beside the newest, as "
        "NAME.step500.h5", "N", needs="checkpoint")
    time_limit: float | None = option(
        None, duration_s, "stop in time: 90s, 30min, 2h (default: when the Slurm job ends)",
        "N min")


@dataclass(frozen=True, kw_only=True)
class JobOptions(SavingOptions, SGD, LengthOptions, GpuOptions, AugmentOptions, section="job"):
    """The options of a job."""

    data: str = required(path, "HDF5 dataset, from: hpcpar data", "FILE.h5",
                         section="network and data")
    seed: int = option(0, checks.seed, "fixes initial weights, shuffling and dropout", "N",
                       section="training")
    resume: str = option(
        "", path, "go on from this checkpoint, made under any plan; continue the record of --out",
        "CHECKPOINT")
    partial: bool = flag("resume from what is left of a damaged checkpoint", needs="resume")
