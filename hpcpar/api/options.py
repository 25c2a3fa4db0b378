"""The options that decide a plan and its price, with their defaults: the command line's too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpcpar.api.checks import (
    OneOf,
    amount,
    argument,
    loads,
    microbatches,
    natural,
    optional,
    positive,
)
from hpcpar.cost.price_family import ACCOUNTINGS
from hpcpar.errors import unknown
from hpcpar.machine.model import Machine
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import (
    BATCH_NORMS,
    COLLECTIVES,
    DTYPES,
    NetworkSpec,
    Overlap,
    PipelineOrder,
    Plan,
    Synchronisation,
)
from hpcpar.plan.strategies import GATHER_SYNONYMS, GATHERS

#: Default samples of an epoch: ImageNet as the papers count it, MNIST for small images.
IMAGENET_SAMPLES = 1_200_000
MNIST_SAMPLES = 60_000


def _option(default: object, check: Callable[[Any], object], help: str, metavar: str = "") -> Any:
    """A field with the check of its values, and its help on the command line."""
    if isinstance(check, OneOf):
        metavar = check.metavar
    return field(default=default, metadata={"check": check, "help": help, "metavar": metavar})


@dataclass(frozen=True)
class PlanningOptions:
    """The options of a plan besides its strategy, by their names on the command line.

    Raises
    ------
    InputError
        A value is not possible.
    """

    gather: str | None = _option(
        None, OneOf(GATHERS, GATHER_SYNONYMS),
        "when activations split by channel are gathered (default lazy: just before a layer needs "
        "them whole)")
    overlap: str | None = _option(
        None, OneOf(Overlap), "what communication may hide behind computing (default full)")
    dtype: str = _option(
        Plan.dtype, OneOf(DTYPES), "type of activations and weights (default %(default)s)")
    collectives: str = _option(
        Plan.collectives, OneOf(COLLECTIVES),
        "who chooses the algorithms of collectives (default %(default)s: the cost model)")
    synchronisation: str = _option(
        Plan.synchronisation, OneOf(Synchronisation),
        "how weights are kept alike (default %(default)s)")
    optimizer: str = _option(
        Plan.optimizer, OneOf(OPTIMIZERS), "what updates the weights (default %(default)s)")
    microbatches: int | None = _option(
        None, microbatches, "parts of the mini-batch in time (default: of a pipeline, four times "
        "its stages; else 1)", "M")
    order: str = _option(
        Plan.order, OneOf(PipelineOrder),
        "of a pipeline's micro-batches: all forward first, or one forward, one backward, which "
        "keeps fewer activations (default %(default)s)")
    bucket: int | None = _option(
        None, natural, "sum the gradients of several layers together, up to so many bytes "
        "(default: the fastest size; 0: each layer on its own)", "BYTES")
    recompute: int = _option(
        Plan.recompute, natural, "keep activations at the ends of N segments of the network (of "
        "every stage) only, and compute the others again in the backward pass (default "
        "%(default)s: keep all)", "N")
    batch_norm: str = _option(
        Plan.batch_norm, OneOf(BATCH_NORMS),
        "statistics of the whole batch, or of each rank's part (default %(default)s)")
    epochs: float = _option(
        1.0, amount, "epochs of the whole training (default %(default)g)", "N")
    samples: int | None = _option(
        None, positive, f"samples of an epoch (default: {IMAGENET_SAMPLES}, the papers' ImageNet, "
        f"for images of 64 pixels and more, else {MNIST_SAMPLES}, MNIST)", "N")
    accounting: str = _option(
        "schedule", OneOf(ACCOUNTINGS),
        "price what is executed, or the same steps by the formulas of Gholami et al. (Eq 3 to 9; "
        "with --gather eager and --overlap none unless given)")
    contention: float | None = _option(
        None, amount, "flows that share a link above the innermost level (default: derived from "
        "the placement)", "PHI")
    load: Mapping[str, float] | None = _option(
        None, loads, "share of a level's bandwidth that other jobs take, as in system=0.2 "
        "(default: the machine file's)", "LEVEL=SHARE,...")
    gamma: float = _option(
        1.0, amount, "part of the activations' memory that is needed (default %(default)g)", "G")
    io: float | None = _option(
        None, amount, "rate at which a rank reads its images (default: not counted)", "BYTES/S")
    io_item_bytes: float = _option(
        1.0, amount, "bytes of a stored value (default %(default)g: uint8)", "N")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            check = optional if f.default is None else argument
            object.__setattr__(self, f.name, check(f.name, f.metadata["check"], value))

    @classmethod
    def of(cls, given: Mapping[str, object]) -> PlanningOptions:
        """Options by name.

        Raises
        ------
        InputError
            A name is unknown, or a value is not possible.
        """
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown("option", name, known)
        chosen: dict[str, Any] = dict(given)
        return cls(**chosen)

    def on(self, machine: Machine) -> Machine:
        """The machine under this load."""
        return machine.loaded(self.load or {})

    def epoch_samples(self, spec: NetworkSpec) -> int:
        """The number of samples of an epoch."""
        return self.samples or (IMAGENET_SAMPLES if spec.shape[-1] >= 64 else MNIST_SAMPLES)

    @property
    def pricing(self) -> dict[str, Any]:
        """The options that only `simulation.price_plan.price` takes."""
        return {"contention": self.contention, "gamma": self.gamma, "io_bytes_per_s": self.io,
                "io_item_bytes": self.io_item_bytes}

    def planning(self, spec: NetworkSpec) -> dict[str, Any]:
        """The options of `search.auto.task`."""
        paper = self.accounting == "paper"
        names = ("collectives", "dtype", "accounting", "synchronisation", "batch_norm", "optimizer",
                 "order", "microbatches", "recompute")
        return {name: getattr(self, name) for name in names} | self.pricing | {
            "gather": self.gather or ("eager" if paper else "lazy"),
            "overlap": self.overlap or (Overlap.NONE if paper else Overlap.FULL),
            "bucket_bytes": 0 if self.bucket is None and paper else self.bucket,
            "samples": self.epoch_samples(spec),
        }
