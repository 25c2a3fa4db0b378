"""A plan: everything that fixes what each rank does, and the file that holds it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hpcpar.errors import InputError, unknown
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.plan.config import Config, Ints
from hpcpar.plan.strategies import Configs, configurations, plan_options

#: Version of the plan file; a reader refuses any other.
VERSION = 1
#: What may run beside compute: nothing, the gradients' allreduces, or also halos and activation
#: gradients.
OVERLAPS = ("none", "gradient", "full")
DTYPES = {"float32": 4, "float64": 8}
#: Who chooses a collective's algorithm: the cost model (``auto``), or one for all.
COLLECTIVES = ("auto", "ring", "tree", "mpi")
#: How weights are kept alike: an allreduce of their gradients; each rank sums and updates a part
#: and hands it out (``sharded``); or one rank does it for all (``server``, the parameter server).
SYNCHRONISATIONS = ("allreduce", "sharded", "server")
#: Statistics of batch normalisation: of the whole batch (equal to serial training), or of each
#: rank's part.
BATCH_NORMS = ("sync", "local")
#: Whose samples a turn of the fully connected layers takes: some of each rank's (OWT's scheme c),
#: or one rank's (scheme b).
SWITCHES = ("each", "one")
#: Which micro-batch a stage takes next: all forward, then all backward (GPipe), or one forward, one
#: backward.
ORDERS = ("gpipe", "1f1b")


#: Values of state for each weight: none, a velocity, two moments.
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}
CHOICES: dict[str, Iterable[str]] = {
    "overlap": OVERLAPS, "collectives": COLLECTIVES, "dtype": DTYPES, "synchronisation": SYNCHRONISATIONS, "batch_norm": BATCH_NORMS,
    "switch": SWITCHES, "optimizer": OPTIMIZERS, "order": ORDERS,
}


@dataclass(frozen=True)
class NetworkSpec:
    """A built-in network with its image shape and number of classes."""

    name: str
    shape: tuple[int, ...]
    classes: int

    def build(self) -> Network:
        return builtin(self.name, self.shape, self.classes)


@dataclass(frozen=True)
class Plan:
    """How `ranks` ranks train a network with mini-batches of `batch` samples.

    A family of plans of one strategy has arrays, with an entry for each case, in `ranks`, `batch`
    and the degrees of `configs`.

    Attributes
    ----------
    configs : dict
        Configuration of every layer.
    overlap : str
        One of `OVERLAPS`.
    collectives : str
        One of `COLLECTIVES` (``tree``: recursive doubling and Bruck; ``mpi``: the MPI library's
        own).
    dtype : str
        Type of activations and weights.
    synchronisation, batch_norm, switch, optimizer, order : str
        One of `SYNCHRONISATIONS`, `BATCH_NORMS`, `SWITCHES`, `OPTIMIZERS`, `ORDERS`.
    microbatches : int
        Parts that the mini-batch is cut into in time: those of a pipeline (GPipe), or whose
        gradients are accumulated.
    bucket_bytes : int
        Gradients of layers are summed together up to so many bytes; 0: each on its own.
    recompute : int
        Segments (of every stage) at whose ends activations are kept, while the others are computed
        again for the backward pass; 0: all are kept.
    turns : int
        Turns in which the layers on features take the batch, with an update after each (OWT's
        schemes b and c); 1 takes it whole (a).
    machine : dict
        The machine that it was made for (the content of a machine file): it decides the algorithms
        in the schedule.
    """

    network: NetworkSpec
    ranks: Ints
    batch: Ints
    strategy: str
    configs: Configs = field(hash=False)
    overlap: str = "full"
    collectives: str = "auto"
    dtype: str = "float32"
    machine: dict[str, Any] = field(default_factory=dict, hash=False)
    synchronisation: str = "allreduce"
    batch_norm: str = "sync"
    microbatches: int = 1
    turns: int = 1
    switch: str = "each"
    optimizer: str = "momentum"
    order: str = "gpipe"
    bucket_bytes: int = 0
    recompute: int = 0

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if np.any(np.less(self.batch, 1)) or np.any(np.less(self.ranks, 1)):
            raise InputError(
                f"plan of {self.ranks} ranks and batch {self.batch}: both must be at least 1")
        if self.bucket_bytes < 0:
            raise InputError(
                f"plan with buckets of {self.bucket_bytes} bytes: give a size of at least 0")
        if self.recompute < 0:
            raise InputError(f"plan that computes {self.recompute} segments again: give a number of segments, or 0")
        if min(self.microbatches, self.turns) < 1:
            raise InputError(f"plan with {self.microbatches} micro-batches and {self.turns} turns: both must be at least 1")
        for config in {id(c): c for c in self.configs.values()}.values():
            if np.any(config.first + config.ranks > self.ranks):
                layer = next(name for name, c in self.configs.items() if c is config)
                raise InputError(f"layer '{layer}' is configured for {config.ranks} ranks from rank {config.first} on ({config}), "
                                 f"the plan is for {self.ranks}")

    @cached_property
    def samples_of_a_pass(self) -> Ints:
        """Samples that go through the network at once: the mini-batch, or a micro-batch of it."""
        return -(-self.batch // self.microbatches)

    @property
    def item_bytes(self) -> int:
        return DTYPES[self.dtype]


def make_plan(
    spec: NetworkSpec, strategy: str, ranks: int, batch: int, *, gather: str = "late", network: Network | None = None, **options: Any
) -> Plan:
    """The plan of a named strategy; `network` is what `spec` builds, where it is at hand; `options`
    are `Plan`'s.
    """
    configs = configurations(spec.build() if network is None else network, strategy, ranks, gather)
    return Plan(spec, ranks, batch, strategy, configs,
                **(plan_options(strategy, ranks, batch) | options))


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data."""
    out = asdict(plan)
    plain = asdict(Config())
    out["configs"] = {name: {k: v for k, v in asdict(c).items() if v != plain[k]}
                      for name, c in plan.configs.items()}
    return {"hpcpar_plan": VERSION, **out}


def from_json(data: Any, where: str) -> Plan:
    """Check and read a plan.

    Raises
    ------
    InputError
        Not a plan, of another version, or not matching its network; `where` names the source in the
        message.
    """
    if not isinstance(data, dict) or "hpcpar_plan" not in data:
        raise InputError(
            f"{where} is not a plan file; write one with: hpcpar plan ... -o plan.json")
    if data["hpcpar_plan"] != VERSION:
        found = data["hpcpar_plan"]
        raise InputError(f"{where} is a plan of version {found}, this hpcpar reads version {VERSION}; write it again with: hpcpar plan")
    try:
        spec = NetworkSpec(data["network"]["name"], tuple(data["network"]["shape"]),
                           data["network"]["classes"])
        rest = {k: v for k, v in data.items() if k not in ("hpcpar_plan", "network", "configs")}
        plan = Plan(network=spec,
                    configs={name: Config(**c) for name, c in data["configs"].items()}, **rest)
    except (KeyError, TypeError) as err:
        raise InputError(f"{where}: damaged plan file ({type(err).__name__}: {err}); write it again with: hpcpar plan") from err
    missing = {layer.name for layer in spec.build().layers} ^ set(plan.configs)
    if missing:
        raise InputError(f"{where}: layers of the plan and of network '{spec.name}' differ: {', '.join(sorted(missing))}")
    return plan


def save(plan: Plan, path: str) -> None:
    """Write the plan file (whole or not at all)."""
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as f:
            json.dump(to_json(plan), f, indent=1)
            f.write("\n")
        os.replace(temporary, path)
    except OSError as err:
        raise InputError(f"cannot write plan file {path}: {err.strerror}") from err


def load(path: str) -> Plan:
    """Read a plan file."""
    try:
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
    except OSError as err:
        raise InputError(f"cannot read plan file {path}: {err.strerror}") from err
    except ValueError as err:
        raise InputError(
            f"plan file {path} is not JSON ({err}); write it again with: hpcpar plan") from err
    return from_json(data, f"plan file {path}")
