"""Diagnosis of a job: findings about its ranks and nodes, each problem with a remedy."""

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
#: Free memory per rank (bytes) below which a warning is given.
_LITTLE_BYTES = 500_000_000
#: File systems that nodes share.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "cifs", "wekafs", "pvfs2",
           "panfs")


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str
    #: ``ok``, ``warning``, or ``problem``, which would stop a run.
    status: str
    what: str
    #: The way to fix it; empty for ``ok``.
    remedy: str = ""


def examine(threads: int, given: dict[str, str]) -> JobEnvironment | None:
    """Examines every rank and its node. Collective; the result is on rank 0, None elsewhere.

    Parameters
    ----------
    threads : int
        BLAS threads of this rank in a run.
    given : dict
        Thread variables that the user has set.
    """
    world, no_mpi, library, binding, separate = None, "", "", "", None
    try:
        world = World()
        library, binding = world.library, world.version
        separate = separate_worlds(world.size, library)
    except InputError as err:
        no_mpi = str(err)
    mine = environment.rank_environment(world, threads)
    every = [mine] if world is None else world.gather(mine)
    if every is None:
        return None
    return JobEnvironment(every, library, binding, no_mpi, separate or "", environment.started_by(),
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
        theirs = ", ".join(f"{k} {v}" for k, v in other.versions.items() if v != first.versions[k])
        yield Finding("software", WARNING, f"{text}; but {other.host} has {theirs}",
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
        yield Finding("MPI", PROBLEM, f"{what}; planning and predicting work without", remedy)
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
                      "start as many ranks on every node, in block order: hpcpar calibrate and the "
                      "levels of a machine expect that")


def _threads(job: JobEnvironment) -> Iterator[Finding]:
    told = (", ".join(f"{k}={v}" for k, v in job.set.items())
            or "nothing set: a run gives each rank its share of the cores")
    yield next((_oversubscribed(host, ranks, told) for host, ranks in job.nodes.items()
                if sum(r.threads for r in ranks) > _cores(ranks)),
               Finding("threads", OK, f"{job.ranks[0].threads} a rank ({told})"))
    ranks = next(iter(job.nodes.values()))
    cores = _cores(ranks)
    if all(len(r.cores) * len(ranks) <= cores for r in ranks):
        text = f"each rank has {len(ranks[0].cores)} core(s) of its own"
    else:
        text = f"ranks of a node share {cores} core(s)"
    yield Finding("binding", OK, text)


def _load(job: JobEnvironment) -> Iterator[Finding]:
    """Processes of others on the nodes."""
    told = [f"{host}: {text}" for host, ranks in job.nodes.items()
            if (text := load(ranks[0].running, len(ranks), ranks[0].node_cores))]
    if told:
        yield Finding("load", WARNING, told[0], "wait, or ask for nodes of your own (--exclusive)")
    else:
        yield Finding("load", OK, "no other process takes the ranks' cores")


def _cores(ranks: Sequence[RankEnvironment]) -> int:
    """The number of cores that the ranks of one node may use."""
    return len({core for rank in ranks for core in rank.cores})


def _oversubscribed(host: str, ranks: Sequence[RankEnvironment], told: str) -> Finding:
    """More threads than cores on a node."""
    threads, cores = ranks[0].threads, _cores(ranks)
    each = "1 thread" if threads == 1 else f"{threads} threads"
    share = cores // len(ranks)
    if share:
        remedy = f"export OMP_NUM_THREADS={share} OPENBLAS_NUM_THREADS={share}"
    else:
        remedy = ("start fewer ranks a node, or give the job more cores (srun --cpus-per-task, "
                  "mpiexec --bind-to none)")
    return Finding("threads", WARNING,
                   f"{host}: {len(ranks)} rank(s) x {each} on {cores} core(s) ({told})", remedy)


def _memory(job: JobEnvironment) -> Iterator[Finding]:
    least_bytes, host = min((ranks[0].free_bytes / len(ranks), host)
                            for host, ranks in job.nodes.items())
    text = f"{least_bytes / 1e9:.1f} GB free for each rank of {host}"
    if least_bytes < _LITTLE_BYTES:
        yield Finding("memory", WARNING, text,
                      "start fewer ranks a node, or ask for more memory (srun --mem)")
    else:
        yield Finding("memory", OK, text)


def _gpus(job: JobEnvironment) -> Iterator[Finding]:
    gpu = job.ranks[0].gpu
    if "cupy" not in gpu and gpu.get("driver"):
        yield Finding("GPUs", WARNING,
                      "a GPU's driver is here, but no CuPy: only --device cpu runs",
                      "pip install 'hpcpar[gpu]'")
    elif "cupy" not in gpu:
        yield Finding("GPUs", OK, "none: --device cpu")
    elif not gpu["devices"]:
        yield _no_device(gpu)
    else:
        yield from _devices(job, gpu)


def _no_device(gpu: dict[str, Any]) -> Finding:
    why = f" ({gpu['fault']})" if gpu["fault"] else ""
    cupy = f"CuPy {gpu['cupy']}" if gpu["cupy"] else "CuPy"
    text = f"{cupy} sees no device{why}: --device cpu"
    if gpu["driver"] or gpu["fault"]:
        return Finding("GPUs", WARNING, text, "fix the CUDA installation, or ask the launcher for "
                                              "GPUs (srun --gpus)")
    return Finding("GPUs", OK, text)


def _devices(job: JobEnvironment, gpu: dict[str, Any]) -> Iterator[Finding]:
    devices = gpu["devices"]
    nccl = f"NCCL {gpu['nccl']}" if gpu["nccl"] else "no NCCL"
    names = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    yield Finding("GPUs", OK, f"{names} on {job.ranks[0].host}, CuPy {gpu['cupy']}, {nccl}")
    most = max(len(ranks) for ranks in job.nodes.values())
    if most > len(devices):
        yield Finding("GPU sharing", WARNING, f"{most} ranks of a node share {len(devices)} GPU(s)",
                      "start one rank a GPU")
    if gpu["direct"]:
        yield Finding("GPU buffers", OK, "MPI took a device buffer: run --transport direct "
                                         "may be tried")
    else:
        why = gpu["fault"] or "wrong values came back"
        yield Finding("GPU buffers", OK, f"MPI took no device buffer ({why}): messages are "
                                         "staged through host memory (--transport staged)")


def _files(job: JobEnvironment) -> Iterator[Finding]:
    first = job.ranks[0]
    parallel = "parallel" if job.parallel_hdf5 else "serial, which is all that hpcpar needs"
    yield Finding("HDF5", OK, f"{job.hdf5} ({parallel})")
    blind = next((r.host for r in job.ranks if not r.sees), None)
    locked = next((r for r in job.ranks if r.locks), None)
    if "not writable" in first.folder:
        yield Finding("folder", WARNING, f"working directory: {first.folder}",
                      "work in a folder where records can be written")
    elif blind is not None:
        yield Finding("folder", PROBLEM,
                      f"{blind} does not see the working directory of {first.host} "
                      f"({first.folder})",
                      "work on a file system that all nodes share, or copy plan and data to the "
                      "same path on every node")
    elif locked is not None:
        yield Finding("folder", WARNING,
                      f"files on {first.folder} cannot be locked ({locked.locks})",
                      "export HDF5_USE_FILE_LOCKING=FALSE")
    else:
        text = f"{first.folder}, files can be locked"
        if first.folder.startswith(_SHARED):
            text += "; should HDF5 complain of locks: export HDF5_USE_FILE_LOCKING=FALSE"
        yield Finding("folder", OK, text)
