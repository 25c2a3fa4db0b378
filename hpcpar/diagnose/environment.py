"""The environment of a rank and its node: versions, cores, threads, memory, files and GPUs."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import socket
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcpar.comm.world import World
from hpcpar.diagnose import gpu_probe, processor
from hpcpar.process.launchers import batch_job, launcher
from hpcpar.version import __version__

#: Time limit (s) for a file from another node to become visible.
_VISIBLE_S = 3.0


@dataclass(frozen=True)
class RankEnvironment:
    """The environment of one rank."""

    host: str
    #: Versions of the software, which should be equal on all nodes.
    versions: dict[str, str]
    #: Cores that the process may run on.
    cores: tuple[int, ...]
    #: BLAS threads in a run.
    threads: int
    #: Free memory of the node (or of the job's control group), shared by its ranks.
    free_bytes: int
    #: File system type of the working directory, with the reason if it is not writable.
    folder: str
    #: Why a file there cannot be locked, or empty.
    locks: str
    #: Whether rank 0's files are visible in the working directory.
    sees: bool
    #: How the environment forces old BLAS kernels (or empty), and running processes on the node.
    kernels: str = ""
    running: int = 0
    #: All cores of the node, including those that the rank must not use.
    node_cores: int = 1
    #: On the node's first rank: result of `gpu_probe.probe`, and ``driver``, whether a GPU's device
    #: file exists.
    gpu: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class JobEnvironment:
    """The environments of all ranks, collected on rank 0."""

    ranks: list[RankEnvironment]
    #: MPI library, and version of mpi4py; empty without MPI.
    mpi: str
    mpi4py: str
    #: Why there is no MPI, and why processes see separate worlds; or empty.
    no_mpi: str
    separate: str
    #: The program that started the ranks, and their number.
    launcher: str
    #: Environment variables for threads that the user has set.
    set: dict[str, str]
    blas: str
    hdf5: str
    parallel_hdf5: bool

    @cached_property
    def nodes(self) -> dict[str, list[RankEnvironment]]:
        """The ranks by host."""
        hosts: dict[str, list[RankEnvironment]] = {}
        for rank in self.ranks:
            hosts.setdefault(rank.host, []).append(rank)
        return hosts


def rank_environment(world: World | None, threads: int) -> RankEnvironment:
    """The environment of this rank. Collective over `world`."""
    host = socket.gethostname()
    hosts = [host] if world is None else world.comm.allgather(host)
    rank = 0 if world is None else world.rank
    versions = {"hpcpar": __version__, "Python": platform.python_version(),
                "NumPy": np.__version__, "h5py": h5py.__version__}
    gpu: dict[str, Any] = {"driver": Path("/dev/nvidiactl").exists()}
    if hosts.index(host) == rank and importlib.util.find_spec("cupy") is not None:
        gpu |= gpu_probe.probe()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    kernels = processor.old_kernels(os.environ, Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return RankEnvironment(host, versions, cores, threads, free_bytes(), *_folder(world), kernels,
                           processor.running(), os.cpu_count() or 1, gpu)


def blas() -> str:
    """Name and version of the BLAS that NumPy was built with."""
    config = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return f"{config.get('name', 'unknown')} {config.get('version', '')}".strip()


def started_by() -> str:
    """The launcher that started this process, and the batch job around it."""
    by, job = launcher(), batch_job()
    ranks = f", {by.ranks} ranks" if by and by.ranks else ""
    return (by.title if by else "none") + ranks + (f", within {job}" if job else "")


def free_bytes() -> int:
    """Free memory of this node, or of this process's control group where that is less."""
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    free = next(int(line.split()[1]) * 1024 for line in text.splitlines()
                if line.startswith("MemAvailable:"))
    for limit, used in (("memory.max", "memory.current"),
                        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            limit, used = (Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").strip()
                           for name in (limit, used))
        except OSError:
            continue
        if limit.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def filesystem(path: str, mounts: str) -> str:
    """Type of the file system that holds `path`, from the text of ``/proc/mounts``."""
    longest, fs_type = -1, "unknown"
    for line in mounts.splitlines():
        _, point, point_type, *_ = line.split()
        point = point.replace("\\040", " ")
        if os.path.commonpath([point, path]) == point and len(point) >= longest:
            longest, fs_type = len(point), point_type
    return fs_type


def _folder(world: World | None) -> tuple[str, str, bool]:
    """The fields `folder`, `locks` and `sees` of `RankEnvironment`."""
    folder, locks, file = os.getcwd(), "", ""
    fs_type = filesystem(folder, Path("/proc/mounts").read_text(encoding="utf-8"))
    try:
        handle, file = tempfile.mkstemp(prefix=".hpcpar-doctor-", dir=folder)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            locks = str(err.strerror)
        os.close(handle)
    except OSError as err:
        fs_type = f"{fs_type}, not writable ({err.strerror})"
    try:
        sees = True
        if world is not None:
            first = world.bcast(file)
            until = time.monotonic() + _VISIBLE_S
            while not (sees := not first or os.path.exists(first)) and time.monotonic() < until:
                time.sleep(0.1)
            world.barrier()
    finally:
        if file:
            os.unlink(file)
    return fs_type, locks, sees
