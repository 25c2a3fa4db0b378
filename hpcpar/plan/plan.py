"""A plan: everything that fixes what each rank does, and the file that holds it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcpar.errors import InputError, unknown
from hpcpar.network.builtin import network as builtin
from hpcpar.network.graph import Network
from hpcpar.plan.config import Config
from hpcpar.plan.strategies import Configs, configurations

#: Version of the plan file; a reader refuses any other.
VERSION = 1
#: What may run beside compute: nothing, the gradients' allreduces, or also halos and activation gradients.
OVERLAPS = ("none", "gradient", "full")
DTYPES = {"float32": 4, "float64": 8}
#: Who chooses a collective's algorithm: the cost model (``auto``), or one for all.
COLLECTIVES = ("auto", "ring", "tree", "mpi")


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

    Attributes
    ----------
    configs : dict
        Configuration of every layer.
    overlap : str
        One of `OVERLAPS`.
    collectives : str
        One of `COLLECTIVES` (``tree``: recursive doubling and Bruck; ``mpi``: the MPI library's own).
    dtype : str
        Type of activations and weights.
    machine : dict
        The machine that it was made for (the content of a machine file): it decides the algorithms in the schedule.
    """

    network: NetworkSpec
    ranks: int
    batch: int
    strategy: str
    configs: Configs = field(hash=False)
    overlap: str = "full"
    collectives: str = "auto"
    dtype: str = "float32"
    machine: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, known in (("overlap", OVERLAPS), ("collectives", COLLECTIVES), ("dtype", DTYPES)):
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if self.batch < 1 or self.ranks < 1:
            raise InputError(f"plan of {self.ranks} ranks and batch {self.batch}: both must be at least 1")
        for layer, config in self.configs.items():
            if config.ranks != self.ranks:
                raise InputError(f"layer '{layer}' is configured for {config.ranks} ranks {config}, the plan is for {self.ranks}")

    @property
    def item_bytes(self) -> int:
        return DTYPES[self.dtype]


def make_plan(spec: NetworkSpec, strategy: str, ranks: int, batch: int, *, gather: str = "late", **options: Any) -> Plan:
    """The plan of a named strategy; `options` are `Plan`'s."""
    return Plan(spec, ranks, batch, strategy, configurations(spec.build(), strategy, ranks, gather), **options)


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data."""
    out = asdict(plan)
    out["configs"] = {name: {k: v for k, v in asdict(c).items() if v != 1} for name, c in plan.configs.items()}
    return {"hpcpar_plan": VERSION, **out}


def from_json(data: Any, where: str) -> Plan:
    """Check and read a plan.

    Raises
    ------
    InputError
        Not a plan, of another version, or not matching its network; `where` names the source in the message.
    """
    if not isinstance(data, dict) or "hpcpar_plan" not in data:
        raise InputError(f"{where} is not a plan file; write one with: hpcpar plan ... -o plan.json")
    if data["hpcpar_plan"] != VERSION:
        found = data["hpcpar_plan"]
        raise InputError(f"{where} is a plan of version {found}, this hpcpar reads version {VERSION}; write it again with: hpcpar plan")
    try:
        spec = NetworkSpec(data["network"]["name"], tuple(data["network"]["shape"]), data["network"]["classes"])
        rest = {k: v for k, v in data.items() if k not in ("hpcpar_plan", "network", "configs")}
        plan = Plan(network=spec, configs={name: Config(**c) for name, c in data["configs"].items()}, **rest)
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
        raise InputError(f"plan file {path} is not JSON ({err}); write it again with: hpcpar plan") from err
    return from_json(data, f"plan file {path}")
