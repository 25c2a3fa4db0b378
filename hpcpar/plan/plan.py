"""A plan, which determines what each rank does, and its file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.errors import InputError, unknown
from hpcpar.io.files import write_text
from hpcpar.io.schema import Bytes, Count, Extent, convert, decode_json, plain, read_bytes
from hpcpar.machine import files
from hpcpar.machine.model import Machine
from hpcpar.network.graph import Network
from hpcpar.network.spec import NetworkSpec
from hpcpar.plan.config import Config
from hpcpar.plan.frameworks import FRAMEWORKS, OWN, Framework
from hpcpar.plan.optimizers import OPTIMIZERS
from hpcpar.plan.precision import PRECISIONS, Precision
from hpcpar.plan.strategies import configurations, plan_options
from hpcpar.plan.strategy import Configs, StrategyOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_AGAIN = "write it again with: hpcpar plan"
#: Version of the plan file's format.
VERSION = 1
#: Former names of fields in files -> today's.
_FORMER = {"synchronisation": "synchronization"}


class Overlap(str, Enum):
    """Overlapped communication: none, weight gradients, or also halos and activation gradients."""

    NONE = "none"
    GRADIENT = "gradient"
    FULL = "full"

    __str__ = str.__str__


class Synchronization(str, Enum):
    """How replicated weights stay equal: an allreduce of gradients; reduction, update and gather of
    a shard per rank; or updates by one rank (a parameter server), or by a host.
    """

    ALLREDUCE = "allreduce"
    SHARDED = "sharded"
    SERVER = "server"
    SERVER_HOST = "server-host"

    __str__ = str.__str__


class PipelineOrder(str, Enum):
    """Order of a stage's micro-batches: all forward, then all backward (GPipe), or 1F1B."""

    GPIPE = "gpipe"
    ONE_FORWARD_ONE_BACKWARD = "1f1b"

    __str__ = str.__str__


#: Collective algorithms by choice: the first listed one that implements a collective runs it; if
#: none does, the cheapest in the cost model. ``tree`` has the fewest rounds.
#: `hpcpar.extend.collective_algorithm` adds names.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    "auto": (), "ring": ("ring",), "tree": ("doubling", "halving"),
    "halving": ("halving", "doubling"), "leaders": ("leaders",), "mpi": ("mpi", "direct"),
}
#: Statistics of batch normalization: over the whole batch (as in serial training), or over each
#: rank's samples.
BATCH_NORMS = ("sync", "local")
OTHER_NORM = {"sync": "local", "local": "sync"}
#: Samples of one fully connected pass: some samples of each rank (OWT's scheme c), or all samples
#: of one rank (scheme b).
SWITCHES = ("each", "one")
#: Most micro-batches, and most FC passes, in a plan file.
MOST_PARTS = 4096
CHOICES: dict[str, Iterable[str]] = {"overlap": Overlap, "collectives": COLLECTIVES,
                                     "precision": PRECISIONS, "synchronization": Synchronization,
                                     "batch_norm": BATCH_NORMS, "switch": SWITCHES,
                                     "optimizer": OPTIMIZERS, "order": PipelineOrder,
                                     "framework": FRAMEWORKS}


@dataclass(frozen=True)
class Plan:
    """A split of training with mini-batches of `batch` samples over `ranks` ranks.

    In a family of plans, the degrees of `configs` are arrays with one entry per plan.

    Attributes
    ----------
    configs : dict
        Configuration of every layer.
    overlap, collectives, synchronization, batch_norm, switch, optimizer, order, framework : str
        One of `Overlap`, `COLLECTIVES`, `Synchronization`, `BATCH_NORMS`, `SWITCHES`,
        `OPTIMIZERS`, `PipelineOrder`, `FRAMEWORKS`.
    precision : str
        One of `PRECISIONS`: number formats in memory, messages and products.
    microbatches : int
        Micro-batches per mini-batch, for a pipeline (GPipe) or for gradient accumulation.
    bucket_bytes : int
        Size up to which gradients of several layers share one allreduce; 0: one per layer.
    recompute : int
        Segments per stage whose last activations are kept; the backward pass recomputes the other
        activations. 0 keeps all.
    fc_passes : int
        Passes of the layers on features over the batch, with an update after each (OWT's schemes b
        and c); one pass takes the whole batch (scheme a).
    machine : Machine, optional
        The machine for which the plan was made; it determines the schedule's collective algorithms.
    """

    network: NetworkSpec
    ranks: Extent
    batch: Extent
    strategy: str
    configs: Configs = field(hash=False)
    overlap: Overlap = Overlap.FULL
    collectives: str = "auto"
    precision: str = "fp32"
    machine: Machine | None = field(default=None, hash=False)
    synchronization: Synchronization = Synchronization.ALLREDUCE
    batch_norm: str = "sync"
    microbatches: Extent = 1
    fc_passes: Extent = 1
    switch: str = "each"
    optimizer: str = "momentum"
    order: PipelineOrder = PipelineOrder.GPIPE
    bucket_bytes: Bytes = 0
    recompute: Count = 0
    framework: str = OWN

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in tuple(known):
                raise unknown(name, value, known)
            if isinstance(known, type):
                object.__setattr__(self, name, known(value))  # callers may pass a name
        if min(self.batch, self.ranks) < 1:
            raise InputError(
                f"plan of {self.ranks} ranks and batch {self.batch}: both must be at least 1")
        if self.bucket_bytes < 0:
            raise InputError(
                f"plan with buckets of {self.bucket_bytes} bytes: give a size of at least 0")
        if self.recompute < 0:
            raise InputError(f"plan that recomputes {self.recompute} segments: give a number of at "
                             "least 0")
        if min(self.microbatches, self.fc_passes) < 1:
            raise InputError(f"plan with {self.microbatches} micro-batches and {self.fc_passes} "
                             "passes: both must be at least 1")
        checked: list[Config] = []
        for layer, config in self.configs.items():
            if any(config is other for other in checked):
                continue
            checked.append(config)
            if np.any(config.first + config.ranks > self.ranks):
                raise InputError(f"layer '{layer}' is configured for {config.ranks} ranks from "
                                 f"rank {config.first} on ({config}), but the plan has "
                                 f"{self.ranks} ranks")

    @cached_property
    def samples_of_a_pass(self) -> int:
        """Samples in one pass through the network: a mini-batch, or one of its micro-batches."""
        return -(-self.batch // self.microbatches)

    @property
    def formats(self) -> Precision:
        """The number formats behind `precision`."""
        return PRECISIONS[self.precision]

    @property
    def dtype(self) -> str:
        """Type of weights, their gradients, statistics and losses."""
        return self.formats.dtype

    @property
    def item_bytes(self) -> int:
        """Bytes per item of an activation or its gradient."""
        return self.formats.item_bytes

    @property
    def rules(self) -> Framework:
        """How the framework exchanges gradients."""
        return FRAMEWORKS[self.framework]


class PlanOptions(StrategyOptions, total=False):
    """Options of `Plan`."""

    overlap: Overlap
    collectives: str
    precision: str
    machine: Machine | None
    synchronization: Synchronization
    batch_norm: str
    optimizer: str
    order: PipelineOrder
    bucket_bytes: int
    recompute: int
    framework: str


def make_plan(spec: NetworkSpec, strategy: str, ranks: int, batch: int, *, gather: str = "lazy",
              network: Network | None = None, **options: Unpack[PlanOptions]) -> Plan:
    """Makes the plan of a named strategy.

    Parameters
    ----------
    network : Network, optional
        The network that `spec` builds, if the caller has it.
    options
        Options of `Plan`; they override the ones that the framework and the strategy fix.
    """
    rules = FRAMEWORKS.get(options.get("framework", OWN), FRAMEWORKS[OWN])  # `Plan` refuses others
    fixed = PlanOptions(overlap=Overlap(rules.overlap), bucket_bytes=rules.bucket_bytes or 0)
    configs = configurations(spec.build() if network is None else network, strategy, ranks, gather)
    return Plan(spec, ranks, batch, strategy, configs,
                **(fixed | plan_options(strategy, ranks, batch) | options))


def to_json(plan: Plan) -> dict[str, object]:
    """The plan as JSON data, without default values of configurations and layers."""
    out, default = plain(replace(plan, machine=None)), plain(Config())
    out["machine"] = plan.machine and files.to_dict(plan.machine)
    out["configs"] = {name: {k: v for k, v in config.items() if v != default[k]}
                      for name, config in out["configs"].items()}
    out["network"] = plan.network.to_json()
    return {"hpcpar_plan": VERSION, **out}


def from_json(data: object, where: str) -> Plan:
    """Checks JSON data and returns its plan; `where` names the source in messages.

    Raises
    ------
    InputError
        The data are not a plan, have another version, or differ from the network's layers.
    """
    if not isinstance(data, dict) or "hpcpar_plan" not in data:
        raise InputError(
            f"{where} is not a plan file; write one with: hpcpar plan ... -o plan.json")
    if data["hpcpar_plan"] != VERSION:
        raise InputError(f"{where} is a plan of version {data['hpcpar_plan']}, but this hpcpar "
                         f"reads version {VERSION}; {_AGAIN}")
    content = {_FORMER.get(str(k), str(k)): v for k, v in data.items() if k != "hpcpar_plan"}
    if isinstance(content.get("machine"), dict):
        content["machine"] = files.current_format(content["machine"], where) or None
    plan = convert(content, Plan, where, _AGAIN)
    for name in ("microbatches", "fc_passes"):
        if getattr(plan, name) > MOST_PARTS:
            raise InputError(f"{where}: '{name}': {getattr(plan, name)} is more than the maximum "
                             f"of {MOST_PARTS}; {_AGAIN}")
    try:
        network = plan.network.build()
    except InputError as err:
        raise InputError(f"{where}: {err}; {_AGAIN}") from err
    missing = {layer.name for layer in network.layers} ^ set(plan.configs)
    if missing:
        raise InputError(f"{where}: layers of the plan and of network '{network.name}' differ: "
                         f"{', '.join(sorted(missing))}")
    return plan


def save(plan: Plan, path: str) -> None:
    """Writes the plan file atomically."""
    write_text(path, json.dumps(to_json(plan), indent=1) + "\n", "plan file")


def load(path: str) -> Plan:
    """Reads a plan file.

    Raises
    ------
    InputError
        The file cannot be read, or `from_json` refuses it.
    """
    where = f"plan file {path}"
    text = read_bytes(path, "plan file", "give the path of one written by hpcpar plan -o")
    return from_json(decode_json(text, object, where, _AGAIN), where)
