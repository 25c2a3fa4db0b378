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
    measured, node = job.measured, fullest_node(world, device)
    threads = int(os.environ.get("OPENBLAS_NUM_THREADS", "0"))
    ranks = world.gather(RankInfo(world.hostname, os.getpid(), threads, device,
                                  peak_memory_bytes()))
    seconds = world.gather_array(np.array(measured.seconds, np.float32))
    iteration_s = world.gather_array(np.array(measured.iteration_s, np.float64))
    sent = world.gather_array(measured.sent_bytes)
    messages = world.gather_array(measured.messages)
    memory_bytes = world.gather(job.executor.memory_bytes)
    stamps = job.stamps
    clock = stamps.close()
    begin_s = world.gather_array(np.array(stamps.begin_s))
    start_s, end_s, wait_s = (world.gather_array(np.array(each))
                              for each in (stamps.starts_s, stamps.ends_s, stamps.waits_s))
    if ranks is None or seconds is None or iteration_s is None or sent is None or messages is None:
        return None
    versions = {
        "python": platform.python_version(), "numpy": np.__version__, "h5py": h5py.__version__,
        "mpi4py": world.version, "mpi": world.library, "platform": platform.platform(),
    }
    return RunRecord(to_json(job.plan), steps_of(job.schedule), ranks, seconds, iteration_s, sent,
                     messages, np.array(measured.loss), np.array(measured.train_accuracy),
                     np.array(measured.test_accuracy), np.array(measured.test_loss),
                     prediction=prediction, machine=machine, versions=versions, started=started,
                     command=command, warmup=min(5, len(measured.loss) // 5),
                     samples=measured.samples, node_ranks=node.ranks, node_cores=node.cores,
                     memory_bytes=np.array(memory_bytes),
                     kept=np.array(stamps.kept), clock=clock, begin_s=begin_s, start_s=start_s,
                     end_s=end_s, wait_s=wait_s)
