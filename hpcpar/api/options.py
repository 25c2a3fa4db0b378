"""Groups of options that the Python functions and the commands share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from hpcpar.cost.price_family import ACCOUNTINGS
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.network.builtin import NETWORKS
from hpcpar.network.data_sets import DATA_SETS, data_set_of
from hpcpar.network.graph import Network
from hpcpar.network.layers import Shape
from hpcpar.network.layers.loss import LOSSES
from hpcpar.options import other_names
from hpcpar.options.checks import (
    OneOf,
    amount,
    image,
    loads,
    microbatches,
    natural,
    part,
    path,
    positive,
)
from hpcpar.options.fields import OptionGroup, about, flag, option
from hpcpar.plan.frameworks import FRAMEWORKS
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.plan import (
    BATCH_NORMS,
    COLLECTIVES,
    Overlap,
    PipelineOrder,
    Plan,
    Synchronization,
)
from hpcpar.plan.precision import PRECISIONS
from hpcpar.plan.strategies import GATHERS
from hpcpar.search.measurements import COLUMNS, Measurement, measurement

#: Why an option that prices epochs has no effect, and the remedy.
NO_EPOCH = "needs the size of an epoch, which is unknown for this network: add --samples N"


def about_network() -> dict[str, Any]:
    """The metadata of the option ``network``."""
    return about(
        path, f"one of {', '.join(NETWORKS)}; file.py:function or module:function that returns a "
        "network or a PyTorch module; a .onnx file; or a .json file from hpcpar networks -o or "
        "hpcpar plan -o", "NAME", section="network and data", first=True)


def about_machine(default: str) -> dict[str, Any]:
    """The metadata of the option ``machine``; `default` describes the default machine."""
    return about(path, f"preset or machine file (default: {default})", "NAME|FILE",
                 section="machine", first=True)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(OptionGroup, section="network and data"):
    """The variant of a network."""

    input: Shape | str | None = option(
        None, image, "image shape; CxDxHxW for volumes, CxW for signals (default: the network's "
        "usual shape)", "CxHxW", first=True)
    classes: int | None = option(
        None, positive, "number of classes (default: the network's usual number)", "N")


@dataclass(frozen=True, kw_only=True)
class LossOptions(NetworkOptions, section="network and data"):
    """The variant of a network, and what training minimizes."""

    loss: str | None = option(
        None, OneOf(LOSSES, other_names.LOSSES), "the loss that training minimizes: "
        f"{', '.join(LOSSES)} (default: the network's own)", "LOSS")
    label_smoothing: float | None = option(
        None, part, "fraction of each label to spread over all classes (default: the network's)",
        "SHARE")


@dataclass(frozen=True, kw_only=True)
class ModuleOptions(OptionGroup, section="network and data"):
    """The user's modules."""

    layers: tuple[str, ...] = option(
        (), path, "import this module or file.py first; it defines your own layers, strategies, "
        "collective algorithms or optimizers (may be repeated)", "MODULE", nargs="*")


@dataclass(frozen=True, kw_only=True)
class LoadOptions(OptionGroup, section="machine"):
    """The current load of a machine."""

    load: Mapping[str, float] | str | None = option(
        None, loads, "fraction of a level's bandwidth that other jobs use, as in system=0.2 "
        "(default: the machine file's)", "LEVEL=SHARE,...")

    def loaded(self, machine: Machine) -> Machine:
        """The machine under this load."""
        return machine.loaded(cast("Mapping[str, float]", self.load or {}))


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(OptionGroup, section="plan"):
    """The number format of a plan."""

    precision: str | None = option(
        None, OneOf(PRECISIONS, other_names.FORMATS),
        "number format; tf32: float32, with matrix products on tensor cores; amp: activations and "
        "products in bfloat16, sums, weights and updates in float32; amp-fp16: the same in float16 "
        "with a loss scale (default: the plan's, else fp32)", first=True)

    def in_precision(self, plan: Plan) -> Plan:
        """A given plan in the requested number format."""
        return replace(plan, precision=self.precision or plan.precision)


@dataclass(frozen=True, kw_only=True)
class StepOptions(PrecisionOptions, section="plan"):
    """Options of every plan; a scaling study sets them once for all of its plans."""

    overlap: str | None = option(
        None, OneOf(Overlap), "communication that computing may hide: none, sums of gradients, "
        "or all (default full)")


@dataclass(frozen=True, kw_only=True)
class PlanFields(StepOptions, section="plan"):
    """The options that a plan file keeps."""

    gather: str | None = option(
        None, OneOf(GATHERS),
        "when to gather activations cut by channel: lazy, just before a layer needs them whole, or "
        "eager, right after their layer (default lazy)")
    collectives: str = option(
        Plan.collectives, OneOf(COLLECTIVES),
        "algorithm of collectives; auto: the cheapest for each step; mpi: the library's own")
    synchronization: str = option(
        Plan.synchronization, OneOf(Synchronization), "how replicas stay equal: an "
        "allreduce of gradients, sharded updates, or a parameter server (a rank, or its host)",
        former=("--synchronisation",))
    optimizer: str = option(
        Plan.optimizer, OneOf(OPTIMIZERS),
        "optimizer; hpcpar run --rate sets its learning rate")
    microbatches: int | None = option(
        None, microbatches, "micro-batches per mini-batch (default: four per stage of a pipeline; "
        "else 1)", "M")
    order: str = option(
        Plan.order, OneOf(PipelineOrder),
        "order of a pipeline's micro-batches; gpipe: all forward, then all backward; 1f1b: one "
        "forward, one backward, which keeps fewer activations")
    bucket: int | None = option(
        None, natural, "largest bucket in which gradients of several layers are summed together "
        "(default: the fastest size; 0: sum each layer separately)", "BYTES")
    recompute: int = option(
        Plan.recompute, natural, "cut the network (each stage of a pipeline) into N segments, keep "
        "only the activations between them, and recompute the others in the backward pass; 0: keep "
        "all", "N")
    batch_norm: str = option(
        Plan.batch_norm, OneOf(BATCH_NORMS),
        "statistics of batch normalization: over the whole batch, or over each rank's part")
    framework: str = option(
        Plan.framework, OneOf(FRAMEWORKS, other_names.FRAMEWORKS),
        f"whose rules of exchanging gradients to price: {', '.join(FRAMEWORKS)} (others than "
        "hpcpar's: prediction only)", "NAME")


@dataclass(frozen=True, kw_only=True)
class PricingOptions(OptionGroup, section="prediction"):
    """Options that change a plan's price without changing the plan or the machine."""

    forward_only: bool = flag("price inference: the forward pass only")
    epochs: float = option(1.0, amount, "epochs of the training", "N", first=True)
    data: str = option(
        "", path, "data file, which has to suit the network: its samples per epoch and bytes per "
        "value are priced", "images.h5")
    samples: int | None = option(
        None, positive, "samples per epoch (default: those of --data, or of "
        + ", ".join(f"{data.name}, {data.samples}" for data in DATA_SETS)
        + ", for networks with its inputs and outputs; for others, epochs have no price)", "N")
    accounting: str = option(
        "schedule", OneOf(ACCOUNTINGS),
        "how to price the steps: as executed, or by the formulas of Gholami et al. (Eq 3 to 9; "
        "implies --gather eager and --overlap none unless given)")
    contention: float | None = option(
        None, amount, "number of flows that share a link above the innermost level (default: "
        "derived from the placement)", "PHI")
    gamma: float = option(1.0, amount, "fraction of the activations' memory that is needed", "G")
    io: float | None = option(
        None, amount, "rate at which a rank reads its images (default: not counted)", "BYTES/S")
    io_item_bytes: float | None = option(
        None, amount, "bytes per stored value (default: those of --data, else 1: uint8)", "N")
    node_input: float | None = option(
        None, amount, "samples per second that a node reads and decodes (default: not limited)",
        "N")


@dataclass(frozen=True, kw_only=True)
class AnchorOptions(OptionGroup, section="prediction"):
    """Measured iterations that predictions follow."""

    measured: tuple[Measurement | str, ...] = option(
        (), measurement, "a measured iteration, with any framework, that corrects the predictions, "
        "as in '8 ranks, batch 256: 346 ms', or a file of them (may be repeated)", "TEXT|CSV",
        details=f"the file has some of the columns {', '.join(COLUMNS)}", nargs="*", first=True)


@dataclass(frozen=True, kw_only=True)
class PlanningOptions(AnchorOptions, PricingOptions, LoadOptions, PlanFields):
    """The options of a plan and its price, except network, machine and strategy."""

    min_batch_per_rank: int | None = option(
        None, positive, "limit batch parallelism, for the sake of accuracy: every rank works on at "
        "least N samples of a mini-batch, so that more ranks cut layers instead", "N",
        section="plan")

    def epoch_samples(self, network: Network) -> int | None:
        """The number of samples per epoch; None if it is unknown.

        Raises
        ------
        InputError
            It is unknown, but several epochs are to be priced.
        """
        known = data_set_of(network)
        stored = self._contents(network)[0] if self.data else None
        samples = self.samples or stored or (known.samples if known else None)
        if samples is None and self.epochs != 1.0:
            raise InputError(f"--epochs {self.epochs:g} {NO_EPOCH}")
        return samples

    def _contents(self, network: Network) -> tuple[int, int]:
        """Samples and bytes per value of the data file."""
        from hpcpar.data.loader import contents  # planning does not need HDF5

        return contents(self.data, network)

    def pricing(self, network: Network) -> dict[str, Any]:
        """The options that only `prediction.price.price` takes."""
        stored = self._contents(network)[1] if self.data else 1.0
        item_bytes = self.io_item_bytes or stored
        return {"contention": self.contention, "gamma": self.gamma, "io_bytes_per_s": self.io,
                "io_item_bytes": item_bytes, "node_samples_per_s": self.node_input,
                "training": not self.forward_only}

    def planning(self, network: Network) -> dict[str, Any]:
        """The options of `search.auto.task`."""
        paper, rules = self.accounting == "paper", FRAMEWORKS[self.framework]
        kept = {f.name: getattr(self, f.name) for f in fields(PlanFields) if f.name != "bucket"}
        return kept | self.pricing(network) | {
            "accounting": self.accounting, "min_batch_per_rank": self.min_batch_per_rank,
            "precision": self.precision or Plan.precision,
            "gather": self.gather or ("eager" if paper else "lazy"),
            "overlap": self.overlap or (Overlap.NONE if paper else Overlap(rules.overlap)),
            "bucket_bytes": (0 if paper else rules.bucket_bytes) if self.bucket is None
            else self.bucket,
            "samples": self.epoch_samples(network),
        }
