"""Collects every rank's measurements into the record of a run, on rank 0."""

from __future__ import annotations

import os
import platform
import resource
from typing import Any

import h5py
import numpy as np

from hpcpar.comm.cores import fullest_node
from hpcpar.comm.world import World
from hpcpar.plan.plan import to_json
from hpcpar.train.job import Job
from hpcpar.train.record import RankInfo, RunRecord, steps_of


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def record(world: World, job: Job, device: str, prediction: dict[str, Any], machine: dict[str, Any],
           started: str, command: str) -> RunRecord | None:
    """The record of a finished job on rank 0, None on the others. Collective over all ranks."""
    measured, stamps, node = job.measured, job.stamps, fullest_node(world, device)
    threads = int(os.environ.get("OPENBLAS_NUM_THREADS", "0"))
    ranks = world.gather(RankInfo(world.hostname, os.getpid(), threads, device,
                                  peak_memory_bytes()))
    clock = stamps.close()
    own = {"seconds": measured.seconds, "iteration_s": measured.iteration_s,
           "sent_bytes": measured.sent_bytes, "messages": measured.messages,
           "memory_bytes": job.executor.memory_bytes, "begin_s": stamps.begin_s,
           "start_s": stamps.starts_s, "end_s": stamps.ends_s, "wait_s": stamps.waits_s}
    arrays: dict[str, Any] = {name: world.gather_array(np.array(value))
                              for name, value in own.items()}
    if ranks is None:
        return None
    versions = {
        "python": platform.python_version(), "numpy": np.__version__, "h5py": h5py.__version__,
        "mpi4py": world.version, "mpi": world.library, "platform": platform.platform(),
    }
    return RunRecord(to_json(job.plan), steps_of(job.schedule), ranks, loss=np.array(measured.loss),
                     train_accuracy=np.array(measured.train_accuracy),
                     test_accuracy=np.array(measured.test_accuracy),
                     test_loss=np.array(measured.test_loss), kept=np.array(stamps.kept),
                     clock=clock, prediction=prediction, machine=machine, versions=versions,
                     started=started, command=command, warmup=min(5, len(measured.loss) // 5),
                     samples=measured.samples, node_ranks=node.ranks, node_cores=node.cores,
                     **arrays)
