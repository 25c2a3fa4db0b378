"""Diagnosis of a job: findings about its ranks and nodes, with a remedy for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py

from hpcpar.comm.world import World, separate_worlds
from hpcpar.diagnose import environment
from hpcpar.diagnose.environment import JobEnvironment, RankEnvironment
from hpcpar.diagnose.processor import load
from hpcpar.errors import InputError

OK, WARNING, PROBLEM = "ok", "warning", "problem"
#: A warning is given if less memory is free per rank.
_MIN_FREE_BYTES = 500_000_000
#: File systems that nodes share.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "cifs", "wekafs", "pvfs2",
           "panfs")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    #: ``ok``, ``warning``, or ``problem``, which prevents a run.
    status: str
    what: str
    #: Empty for ``ok``.
    remedy: str = ""


def examine(threads: int, given: dict[str, str]) -> JobEnvironment | None:
    """Examines every rank and its node. Collective; returns the result on rank 0, None elsewhere.

    Parameters
    ----------
    threads : int
        BLAS threads of this rank in a run.
    given : dict
        Environment variables for threads that the user has set.
    """
    world, no_mpi, library, mpi4py, separate = None, "", "", "", None
    try:
        world = World()
        library, mpi4py = world.library, world.version
        separate = separate_worlds(world.size, library)
    except InputError as err:
        no_mpi = str(err)
    local = environment.rank_environment(world, threads)
    ranks = [local] if world is None else world.gather(local)
    if ranks is None:
        return None
    return JobEnvironment(ranks, library, mpi4py, no_mpi, separate or "", environment.started_by(),
                          given, environment.blas(), h5py.version.hdf5_version,
                          h5py.get_config().mpi)


def diagnose(job: JobEnvironment) -> list[Finding]:
    """Checks the environment of a job."""
    return [*_software(job), *_mpi(job), *_threads(job), *_load(job), *_memory(job),
            *_gpus(job), *_files(job)]


def _software(job: JobEnvironment) -> Iterator[Finding]:
    first = job.ranks[0]
    text = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    other = next((r for r in job.ranks if r.versions != first.versions), None)
    if other is None:
        yield Finding("software", OK, text)
    else:
        others = ", ".join(f"{k} {v}" for k, v in other.versions.items() if v != first.versions[k])
        yield Finding("software", WARNING, f"{text}; but {other.host} has {others}",
                      "use one environment on a file system that all nodes share")
    old = next((r for r in job.ranks if r.kernels), None)
    if old is None:
        yield Finding("BLAS", OK, job.blas)
    else:
        yield Finding("BLAS", WARNING, f"{job.blas}; {old.host}: {old.kernels}",
                      "unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE")


def _mpi(job: JobEnvironment) -> Iterator[Finding]:
    if job.no_mpi:
        what, _, remedy = job.no_mpi.partition("; ")
        yield Finding("MPI", PROBLEM, f"{what}; planning and prediction work without MPI", remedy)
        return
    yield Finding("MPI", OK, f"{job.mpi.partition(',')[0]}, mpi4py {job.mpi4py}")
    nodes = job.nodes
    world = f"{len(job.ranks)} rank(s) on {len(nodes)} node(s)"
    if job.separate:
        what, _, remedy = job.separate.partition("; ")
        yield Finding("launcher", PROBLEM, f"{job.launcher}; {what}", remedy)
    else:
        yield Finding("launcher", OK, f"{job.launcher}; the world has {world}")
    equal = len({len(ranks) for ranks in nodes.values()}) == 1
    in_blocks = [r.host for r in job.ranks] == [host for host in nodes for _ in nodes[host]]
    if not (equal and in_blocks):
        counts = ", ".join(f"{len(ranks)} on {host}" for host, ranks in nodes.items())
        yield Finding("placement", WARNING, f"unequal or scattered ranks: {counts}",
                      "start the same number of ranks on every node, in block order, as hpcpar "
                      "calibrate and the levels of a machine require")


def _threads(job: JobEnvironment) -> Iterator[Finding]:
    settings = (", ".join(f"{k}={v}" for k, v in job.set.items())
                or "no variable set: a run gives each rank its share of the cores")
    yield next((_oversubscribed(host, ranks, settings) for host, ranks in job.nodes.items()
                if sum(r.threads for r in ranks) > _cores(ranks)),
               Finding("threads", OK, f"{job.ranks[0].threads} per rank ({settings})"))
    ranks = next(iter(job.nodes.values()))
    cores = _cores(ranks)
    if all(len(r.cores) * len(ranks) <= cores for r in ranks):
        text = f"each rank has {len(ranks[0].cores)} core(s) of its own"
    else:
        text = f"ranks of a node share {cores} core(s)"
    yield Finding("binding", OK, text)


def _load(job: JobEnvironment) -> Iterator[Finding]:
    """Other users' processes on the nodes."""
    busy = [f"{host}: {text}" for host, ranks in job.nodes.items()
            if (text := load(ranks[0].running, len(ranks), ranks[0].node_cores))]
    if busy:
        yield Finding("load", WARNING, busy[0], "wait, or request exclusive nodes (--exclusive)")
    else:
        yield Finding("load", OK, "no other process uses the ranks' cores")


def _cores(ranks: Sequence[RankEnvironment]) -> int:
    """The number of cores that the ranks of one node may use."""
    return len({core for rank in ranks for core in rank.cores})


def _oversubscribed(host: str, ranks: Sequence[RankEnvironment], settings: str) -> Finding:
    """A node has more threads than cores."""
    threads, cores = ranks[0].threads, _cores(ranks)
    per_rank = "1 thread" if threads == 1 else f"{threads} threads"
    share = cores // len(ranks)
    if share:
        remedy = f"export OMP_NUM_THREADS={share} OPENBLAS_NUM_THREADS={share}"
    else:
        remedy = ("start fewer ranks per node, or give the job more cores (srun --cpus-per-task, "
                  "mpiexec --bind-to none)")
    return Finding("threads", WARNING,
                   f"{host}: {len(ranks)} rank(s) x {per_rank} on {cores} core(s) ({settings})",
                   remedy)


def _memory(job: JobEnvironment) -> Iterator[Finding]:
    free_bytes, host = min((ranks[0].free_bytes / len(ranks), host)
                           for host, ranks in job.nodes.items())
    text = f"{free_bytes / 1e9:.1f} GB free per rank on {host}"
    if free_bytes < _MIN_FREE_BYTES:
        yield Finding("memory", WARNING, text,
                      "start fewer ranks per node, or request more memory (srun --mem)")
    else:
        yield Finding("memory", OK, text)


def _gpus(job: JobEnvironment) -> Iterator[Finding]:
    gpu = job.ranks[0].gpu
    if "cupy" not in gpu and gpu.get("driver"):
        yield Finding("GPUs", WARNING,
                      "a GPU driver is installed, but CuPy is not: only --device cpu works",
                      "pip install 'hpcpar[gpu]'")
    elif "cupy" not in gpu:
        yield Finding("GPUs", OK, "none: use --device cpu")
    elif not gpu["devices"]:
        yield _no_device(gpu)
    else:
        yield from _devices(job, gpu)


def _no_device(gpu: dict[str, Any]) -> Finding:
    why = f" ({gpu['fault']})" if gpu["fault"] else ""
    cupy = f"CuPy {gpu['cupy']}" if gpu["cupy"] else "CuPy"
    text = f"{cupy} sees no device{why}: use --device cpu"
    if gpu["driver"] or gpu["fault"]:
        return Finding("GPUs", WARNING, text, "fix the CUDA installation, or request GPUs (srun "
                                              "--gpus)")
    return Finding("GPUs", OK, text)


def _devices(job: JobEnvironment, gpu: dict[str, Any]) -> Iterator[Finding]:
    devices = gpu["devices"]
    nccl = f"NCCL {gpu['nccl']}" if gpu["nccl"] else "no NCCL"
    names = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    yield Finding("GPUs", OK, f"{names} on {job.ranks[0].host}, CuPy {gpu['cupy']}, {nccl}")
    per_node = max(len(ranks) for ranks in job.nodes.values())
    if per_node > len(devices):
        yield Finding("GPU sharing", WARNING,
                      f"{per_node} ranks of a node share {len(devices)} GPU(s)",
                      "start one rank per GPU")
    why = gpu["fault"] or "wrong values came back"
    yield Finding("GPU buffers", OK, "MPI accepts device buffers: try run --transport direct"
                  if gpu["direct"] else f"MPI does not accept device buffers ({why}): messages are "
                                        "staged through host memory (--transport staged)")


def _files(job: JobEnvironment) -> Iterator[Finding]:
    first = job.ranks[0]
    parallel = "parallel" if job.parallel_hdf5 else "serial, which is sufficient for hpcpar"
    yield Finding("HDF5", OK, f"{job.hdf5} ({parallel})")
    blind = next((r.host for r in job.ranks if not r.sees), None)
    locked = next((r for r in job.ranks if r.locks), None)
    if "not writable" in first.folder:
        yield Finding("folder", WARNING, f"working directory: {first.folder}", "use a writable one")
    elif blind is not None:
        yield Finding("folder", PROBLEM,
                      f"{blind} does not see {first.host}'s working directory ({first.folder})",
                      "use a file system that all nodes share, or copy plan and data to the same "
                      "path on every node")
    elif locked is not None:
        yield Finding("folder", WARNING,
                      f"files on {first.folder} cannot be locked ({locked.locks})",
                      "export HDF5_USE_FILE_LOCKING=FALSE")
    else:
        text = f"{first.folder}, files can be locked"
        if first.folder.startswith(_SHARED):
            text += "; if HDF5 reports lock errors: export HDF5_USE_FILE_LOCKING=FALSE"
        yield Finding("folder", OK, text)
