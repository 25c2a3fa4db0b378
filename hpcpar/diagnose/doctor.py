"""Diagnosis: from what the ranks see to findings, each with a remedy where something is to be
mended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcpar.comm.world import World, separate_worlds
from hpcpar.diagnose import environment
from hpcpar.diagnose.environment import Facts, Job
from hpcpar.errors import InputError

OK, WARNING, PROBLEM = "ok", "warning", "problem"
#: Less free memory a rank than this (bytes) is little.
_LITTLE_BYTES = 500_000_000
#: File systems that nodes share.
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse", "9p", "cifs", "wekafs", "pvfs2",
           "panfs")


@dataclass(frozen=True)
class Finding:
    """Something that was looked at.

    Attributes
    ----------
    status : str
        ``ok``, ``warning``, or ``problem``: something that would stop a run.
    remedy : str
        What to do; empty where all is well.
    """

    subject: str
    status: str
    what: str
    remedy: str = ""


def examine(threads: int, given: dict[str, str]) -> Job | None:
    """Look around on every rank; the job on rank 0, None elsewhere.

    Parameters
    ----------
    threads : int
        BLAS threads of this rank in a run.
    given : dict
        Variables of threads that the user has set.
    """
    world, no_mpi = None, ""
    try:
        world = World()
    except InputError as err:
        no_mpi = str(err)
    mine = environment.facts(world, threads)
    every = [mine] if world is None else world.gather(mine)
    if every is None:
        return None
    separate = (separate_worlds(world.size, world.library) if world is not None else None) or ""
    library, binding = ("", "") if world is None else (world.library, world.version)
    config = environment.h5py.get_config()
    return Job(every, library, binding, no_mpi, separate, environment.launcher(), given,
               environment.blas(), environment.h5py.version.hdf5_version, config.mpi)


def diagnose(job: Job) -> list[Finding]:
    """What is well, and what is not."""
    return [*_software(job), *_mpi(job), *_threads(job), *_memory(job), *_gpus(job), *_files(job)]


def _software(job: Job) -> Iterator[Finding]:
    first = job.ranks[0]
    text = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    other = next((r for r in job.ranks if r.versions != first.versions), None)
    if other is None:
        yield Finding("software", OK, text)
    else:
        theirs = ", ".join(f"{k} {v}" for k, v in other.versions.items() if v != first.versions[k])
        yield Finding("software", WARNING, f"{text}; but {other.host} has {theirs}",
                      "use one environment on a file system that all nodes share")
    yield Finding("BLAS", OK, job.blas)


def _mpi(job: Job) -> Iterator[Finding]:
    if job.no_mpi:
        what, _, remedy = job.no_mpi.partition("; ")
        yield Finding("MPI", PROBLEM, f"{what}; planning and predicting work without", remedy)
        return
    yield Finding("MPI", OK, f"{job.mpi.partition(',')[0]}, mpi4py {job.mpi4py}")
    nodes = _by_host(job.ranks)
    world = f"{len(job.ranks)} rank(s) on {len(nodes)} node(s)"
    if job.separate:
        what, _, remedy = job.separate.partition("; ")
        yield Finding("launcher", PROBLEM, f"{job.launcher}; {what}", remedy)
    else:
        yield Finding("launcher", OK, f"{job.launcher}; the world has {world}")
    if len({len(ranks) for ranks in nodes.values()}) > 1 or [r.host for r in job.ranks] != [h for h in nodes for _ in nodes[h]]:
        yield Finding("placement", WARNING, f"unequal or scattered ranks: {', '.join(f'{len(v)} on {k}' for k, v in nodes.items())}",
                      "start as many ranks on every node, in block order: hpcpar calibrate and the levels of a machine expect that")


def _by_host(ranks: Sequence[Facts]) -> dict[str, list[Facts]]:
    out: dict[str, list[Facts]] = {}
    for r in ranks:
        out.setdefault(r.host, []).append(r)
    return out


def _threads(job: Job) -> Iterator[Finding]:
    told = ", ".join(f"{k}={v}" for k, v in job.set.items()) or "nothing set: a run gives each rank its share of the cores"
    crowded = bound = ""
    for host, ranks in _by_host(job.ranks).items():
        cores = len({c for r in ranks for c in r.cores})
        wanted = sum(r.threads for r in ranks)
        if wanted > cores and not crowded:
            each = "1 thread" if ranks[0].threads == 1 else f"{ranks[0].threads} threads"
            crowded = f"{host}: {len(ranks)} rank(s) x {each} on {cores} core(s) ({told})"
            share = max(1, cores // len(ranks))
            remedy = f"export OMP_NUM_THREADS={share} OPENBLAS_NUM_THREADS={share}" if share * len(ranks) <= cores else \
                "start fewer ranks a node, or give the job more cores (srun --cpus-per-task, mpiexec --bind-to none)"
        own = all(len(r.cores) * len(ranks) <= cores for r in ranks)
        bound = bound or (f"each rank has {len(ranks[0].cores)} core(s) of its own" if own
                          else f"ranks of a node share {cores} core(s)")
    if crowded:
        yield Finding("threads", WARNING, crowded, remedy)
    else:
        yield Finding("threads", OK, f"{job.ranks[0].threads} a rank ({told})")
    yield Finding("binding", OK, bound)


def _memory(job: Job) -> Iterator[Finding]:
    host, ranks = min(_by_host(job.ranks).items(), key=lambda kv: kv[1][0].free_bytes / len(kv[1]))
    each = ranks[0].free_bytes / len(ranks)
    text = f"{each / 1e9:.1f} GB free for each rank of {host}"
    if each < _LITTLE_BYTES:
        yield Finding("memory", WARNING, text,
                      "start fewer ranks a node, or ask for more memory (srun --mem)")
    else:
        yield Finding("memory", OK, text)


def _gpus(job: Job) -> Iterator[Finding]:
    gpu = job.ranks[0].gpu
    if "cupy" not in gpu:
        if gpu.get("driver"):
            yield Finding("GPUs", WARNING,
                          "a GPU's driver is here, but no CuPy: only --device cpu runs",
                          "pip install 'hpcpar[gpu]'")
        else:
            yield Finding("GPUs", OK, "none: --device cpu")
        return
    devices = gpu["devices"]
    if not devices:
        why = f" ({gpu['fault']})" if gpu["fault"] else ""
        status = WARNING if gpu["driver"] or gpu["fault"] else OK
        remedy = "mend the CUDA installation, or ask the launcher for GPUs (srun --gpus)" if status == WARNING else ""
        yield Finding("GPUs", status, f"CuPy {gpu['cupy']} sees no device{why}: --device cpu".replace("CuPy  sees", "CuPy sees"), remedy)
        return
    nccl = f"NCCL {gpu['nccl']}" if gpu["nccl"] else "no NCCL"
    names = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    yield Finding("GPUs", OK, f"{names} on {job.ranks[0].host}, CuPy {gpu['cupy']}, {nccl}")
    most = max(len(ranks) for ranks in _by_host(job.ranks).values())
    if most > len(devices):
        yield Finding("GPU sharing", WARNING, f"{most} ranks of a node share {len(devices)} GPU(s)",
                      "start one rank a GPU")
    if gpu["direct"]:
        yield Finding("GPU buffers", OK, "MPI took a device buffer: run --direct may be tried")
    else:
        yield Finding("GPU buffers", OK, f"MPI took no device buffer ({gpu['fault'] or 'wrong values came back'}): run without --direct, "
                      "buffers are staged through host memory")


def _files(job: Job) -> Iterator[Finding]:
    first = job.ranks[0]
    parallel = "parallel" if job.parallel_hdf5 else "serial, which is all that hpcpar needs"
    yield Finding("HDF5", OK, f"{job.hdf5} ({parallel})")
    blind = next((r.host for r in job.ranks if not r.sees), None)
    locked = next((r for r in job.ranks if r.locks), None)
    if "not writable" in first.folder:
        yield Finding("folder", WARNING, f"working directory: {first.folder}",
                      "work in a folder where records can be written")
    elif blind is not None:
        yield Finding("folder", PROBLEM, f"{blind} does not see the working directory of {first.host} ({first.folder})",
                      "work on a file system that all nodes share, or copy plan and data to the same path on every node")
    elif locked is not None:
        yield Finding("folder", WARNING,
                      f"files on {first.folder} cannot be locked ({locked.locks})",
                      "export HDF5_USE_FILE_LOCKING=FALSE")
    else:
        shared = any(first.folder.startswith(kind) for kind in _SHARED)
        yield Finding("folder", OK, f"{first.folder}, files can be locked" + (
            "; should HDF5 complain of locks: export HDF5_USE_FILE_LOCKING=FALSE" if shared else ""))
