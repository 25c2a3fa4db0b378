"""Options of batch jobs, from a TOML file and the command line; ranks and nodes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta

from hpcpar.errors import InputError
from hpcpar.io.schema import Extent, Line, Word, convert, read_toml
from hpcpar.machine.model import Machine
from hpcpar.options.checks import positive
from hpcpar.options.fields import OptionGroup, option

_TIME = r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?"
JobTime = Annotated[str, Meta(pattern=rf"^{_TIME}$(?!\n)", description=(
    'a time as Slurm writes it, as in "00:30:00"'))]


@dataclass(frozen=True, kw_only=True)
class BatchOptions(OptionGroup, section="batch jobs"):
    """Options of a batch job; an empty string or 0 leaves them to the site."""

    account: Word = option("", str, "account or project to charge", "A")
    partition: Word = option("", str, "partition or queue", "Q", names=("--partition", "--queue"))
    time: JobTime = option(
        "", str, "time limit of a job, or of each case if run locally", "H:M:S")
    constraint: Word = option("", str, "required node features", "C")
    mpi: Word = option(
        "", str, "how ranks start (default: fits the installed MPI wheel): of srun pmi2, "
        "pmix, ...; of flux run simple, pmix; elsewhere mpich, openmpi, pals", "TYPE")
    pe: Word = option("mpi", str, "Grid Engine: parallel environment (qconf -spl)", "PE")
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
    directives: tuple[Line, ...] = option(
        (), str, "further directive, as in --directive=--qos=debug for #SBATCH --qos=debug (may be "
        "repeated)", "LINE", names=("--directive",), nargs="*")
    #: Shell lines before the runs.
    setup: tuple[Line, ...] = ()
    #: Further words of the launch line.
    launch: tuple[Line, ...] = ()

    def nodes_for(self, ranks: int) -> int:
        """Number of nodes for this many ranks; 0 where the site decides.

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

    def on(self, machine: Machine) -> BatchOptions:
        """With as many ranks per node as the machine has, where no option says how many."""
        if self.nodes or self.ranks_per_node:
            return self
        return replace(self, ranks_per_node=machine.ranks_of_node)

    def values(self, ranks: int) -> dict[str, str | int]:
        """The options and this many ranks as values of `hpcpar.sweep.schedulers.base`."""
        nodes, cores = self.nodes_for(ranks), self.cpus_per_rank or 1
        on_node = math.ceil(ranks / nodes) if self.nodes else min(ranks, self.ranks_per_node)
        chunk = on_node or ranks
        return {"account": self.account, "queue": self.partition, "constraint": self.constraint,
                "mpi": self.mpi, "pe": self.pe, "ranks": ranks, "nodes": nodes,
                "node_ranks": on_node, "cpus": self.cpus_per_rank, "gpus": self.gpus_per_rank,
                "chunks": nodes or 1, "chunk_ranks": chunk, "chunk_cpus": chunk * cores,
                "chunk_gpus": chunk * self.gpus_per_rank, "cores": ranks * cores}


def read(path: str, given: Mapping[str, Any],
         site: tuple[str, Mapping[str, Any]] = ("", {})) -> BatchOptions:
    """Merges the site's options, a TOML file's and the command line's; the last one wins.

    An empty path stands for no file; `site` is the path of the site defaults and their job
    options.

    Raises
    ------
    InputError
        The file cannot be read, or an option is unknown or has a wrong value.
    """
    page = "docs/reference/sweep.md"
    values = read_toml(path, dict[str, object], "batch options", page) if path else {}
    usual = dict(site[1])
    if {"nodes", "ranks_per_node"} & (values.keys() | given.keys()):  # one of the two counts
        usual = {k: v for k, v in usual.items() if k not in ("nodes", "ranks_per_node")}
    merged: dict[str, Any] = {}
    for where, source in ((f" of {site[0]}", usual), (f" {path}", values), ("", given)):
        given_here = convert(source, BatchOptions, f"batch options{where}",
                             f"{page} has an example")
        for name in source:
            value = getattr(given_here, name)
            merged[name] = merged.get(name, ()) + value if isinstance(value, tuple) else value
    out = BatchOptions(**merged)
    if out.nodes and out.ranks_per_node:
        raise InputError(f"nodes {out.nodes} and ranks_per_node {out.ranks_per_node}: one follows "
                         "from the other; give one of the two")
    return out


def seconds(time: str) -> int:
    """A time as Slurm writes it (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S) in seconds."""
    days, hours, minutes, rest = re.findall(_TIME, time)[0]
    if not days and not rest:  # minutes come first
        hours, minutes, rest = "", hours, minutes
    return ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(rest or 0)
