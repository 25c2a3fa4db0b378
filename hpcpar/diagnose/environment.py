"""What a rank sees of itself and its node: versions, cores, threads, memory, files. For ``hpcpar
doctor``.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import hpcpar
from hpcpar.comm.world import World
from hpcpar.diagnose import gpu_probe

#: How long a file that another node has made may take to be seen here (s).
_SEEN_S = 3.0


@dataclass(frozen=True)
class Facts:
    """What one rank sees.

    Attributes
    ----------
    versions : dict
        By what differs between nodes only where something is wrong.
    cores : tuple of int
        That the process may run on.
    threads : int
        Of its BLAS in a run.
    free_bytes : int
        Memory of the node (or of the job's control group) that is free for all its ranks.
    folder : str
        Type of the file system of the working directory, or why it cannot be written.
    locks : str
        Why a file there cannot be locked, or empty.
    sees : bool
        It has the working directory's files that rank 0 has.
    gpu : dict
        As `gpu_probe.look` says, of the node's first rank; ``driver``: there is a GPU's device
        file.
    """

    host: str
    versions: dict[str, str]
    cores: tuple[int, ...]
    threads: int
    free_bytes: int
    folder: str
    locks: str
    sees: bool
    gpu: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What rank 0 knows of all ranks.

    Attributes
    ----------
    mpi, mpi4py : str
        The library and versions; empty without.
    no_mpi : str
        Why there is no MPI, or empty.
    separate : str
        What is wrong where processes of one job see separate worlds, or empty.
    launcher : str
        Who started the ranks, and as how many.
    set : dict
        Variables of threads that the user has set.
    blas : str
    hdf5 : str
    parallel_hdf5 : bool
    """

    ranks: list[Facts]
    mpi: str
    mpi4py: str
    no_mpi: str
    separate: str
    launcher: str
    set: dict[str, str]
    blas: str
    hdf5: str
    parallel_hdf5: bool


def facts(world: World | None, threads: int) -> Facts:
    """This rank's; every rank of `world` must ask."""
    host = socket.gethostname()
    hosts = [host] if world is None else world.comm.allgather(host)
    rank = 0 if world is None else world.rank
    versions = {"hpcpar": hpcpar.__version__, "Python": platform.python_version(),
                "NumPy": np.__version__, "h5py": h5py.__version__}
    folder, locks, sees = _folder(world)
    gpu: dict[str, Any] = {"driver": Path("/dev/nvidiactl").exists()}
    if hosts.index(host) == rank and importlib.util.find_spec("cupy") is not None:
        gpu |= gpu_probe.look()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return Facts(host, versions, cores, threads, free_bytes(), folder, locks, sees, gpu)


def blas() -> str:
    """The BLAS that NumPy was built with."""
    found = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()


def launcher() -> str:
    """Who started this process, by what it finds in its environment."""
    e = os.environ
    # mpirun's own first: inside a Slurm job its processes see the batch script's SLURM variables
    # too
    if "OMPI_COMM_WORLD_SIZE" in e:
        return f"mpiexec of Open MPI, {e['OMPI_COMM_WORLD_SIZE']} ranks"
    if "SLURM_STEP_ID" in e and e.get("SLURM_STEP_NUM_TASKS", "").isdigit():
        return f"srun (Slurm step {e.get('SLURM_JOB_ID', '?')}.{e['SLURM_STEP_ID']}), {e['SLURM_STEP_NUM_TASKS']} ranks on " \
               f"{e.get('SLURM_STEP_NUM_NODES', '?')} node(s)"
    if "PMI_SIZE" in e:
        return f"mpiexec (PMI), {e['PMI_SIZE']} ranks"
    return "none" + (f", within Slurm job {e['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in e else "")


def free_bytes() -> int:
    """Memory that is free on this node, or below the limit of this process's control group where
    that is less.
    """
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    free = next(int(line.split()[1]) * 1024 for line in text.splitlines()
                if line.startswith("MemAvailable:"))
    for limit, used in (("memory.max", "memory.current"),
                        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            most, now = (Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").strip()
                         for name in (limit, used))
        except OSError:
            continue
        if most.isdigit():
            free = min(free, max(0, int(most) - int(now)))
    return free


def filesystem(path: str, mounts: str) -> str:
    """The type of the file system that holds `path`, from the text of ``/proc/mounts``."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        _, point, found, *_ = line.split()
        point = point.replace("\\040", " ")
        if os.path.commonpath([point, path]) == point and len(point) >= best:
            best, kind = len(point), found
    return kind


def _folder(world: World | None) -> tuple[str, str, bool]:
    """Type of the working directory's file system, why it does not lock, and whether rank 0's files
    are seen in it.
    """
    here = os.getcwd()
    kind, locks, mine = filesystem(here, Path("/proc/mounts").read_text(encoding="utf-8")), "", ""
    try:
        handle, mine = tempfile.mkstemp(prefix=".hpcpar-doctor-", dir=here)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            locks = str(err.strerror)
        os.close(handle)
    except OSError as err:
        kind = f"{kind}, not writable ({err.strerror})"
    try:
        sees = True
        if world is not None:
            first = world.bcast(mine)
            until = time.monotonic() + _SEEN_S
            while not (sees := not first or os.path.exists(first)) and time.monotonic() < until:
                time.sleep(0.1)
            world.barrier()
    finally:
        if mine:
            os.unlink(mine)
    return kind, locks, sees
