"""Collects the record of a run from all ranks' measurements."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import h5py
import numpy as np

from hpcpar.comm.world import World
from hpcpar.machine.model import NodeCores
from hpcpar.plan.plan import to_json
from hpcpar.process.launchers import whole_number
from hpcpar.runtime.reservoir import MAX_ITERATIONS
from hpcpar.train import record_file, run_record
from hpcpar.train.job import Job, MeasuredRun
from hpcpar.train.run_record import RankInfo, RunRecord, steps_of


def peak_memory_bytes() -> int:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Recorder:
    """Collects the record of a run. All methods are collective.

    Parameters
    ----------
    node : NodeCores
        The node with the most ranks per core.
    about : dict
        Fields of the record that are known before the run.
    before : RunRecord, optional
        On rank 0: the record that this one continues.
    """

    def __init__(self, world: World, job: MeasuredRun, device: str, node: NodeCores,
                 about: dict[str, Any], before: RunRecord | None = None) -> None:
        self._world, self._job, self._device, self._node = world, job, device, node
        versions = {
            "python": platform.python_version(), "numpy": np.__version__, "h5py": h5py.__version__,
            "mpi4py": world.version, "mpi": world.library, "platform": platform.platform(),
            **job.executor.backend.versions,
        }
        if job.executor.backend.works_later:
            versions["graphs"] = "off" if job.executor.replays is None else "auto"
        self._about = about | {"versions": versions, "samples": job.measured.samples,
                               "node_ranks": node.ranks, "node_cores": node.cores}
        self._before = before

    def collect(self, whole: bool = True) -> RunRecord | None:
        """The record so far, on rank 0; None on the others. See `Stamps.arrays` for `whole`."""
        world, job = self._world, self._job
        job.count_messages()
        measured, (kept, stamps) = job.measured, job.stamps.arrays(whole)
        threads = whole_number("OPENBLAS_NUM_THREADS") or 0
        ranks = world.gather(RankInfo(world.hostname, os.getpid(), threads, self._device,
                                      peak_memory_bytes()))
        clock = job.stamps.clocks()
        seconds = [iteration_s for iteration_s, _ in measured.iterations.values]
        local: dict[str, Any] = {
            "iteration_s": seconds, "sent_bytes": measured.sent_bytes,
            "messages": measured.messages, "memory_bytes": job.executor.memory_bytes,
            **stamps}
        if measured.outside.values:
            local["outside_s"] = measured.outside.values
        arrays: dict[str, Any] = {name: world.gather_array(np.array(value))
                                  for name, value in local.items()}
        if ranks is None:
            return None
        numbers = np.array(measured.iterations.numbers, np.int64)
        ends = measured.epochs.values
        train, test, loss = np.array([end[:3] for end in ends], np.float64).reshape(-1, 3).T
        for name in ("test_counts", "train_counts"):
            counts = [c for end in ends if (c := getattr(end, name)) is not None]
            arrays[name] = np.array(counts) if counts else None
        record = RunRecord(
            to_json(job.plan), steps_of(job.schedule), ranks, loss=np.array(measured.losses),
            iterations_done=numbers, kept=np.searchsorted(numbers, kept),
            epochs_done=np.array(measured.epochs.numbers, np.int64),
            train_accuracy=train, test_accuracy=test, test_loss=loss, clock=clock,
            warmup=min(5, len(numbers) // 5), done=job.step, **self._about, **arrays)
        if self._before is None:
            return record
        assert isinstance(job, Job)
        epoch = job.start // job.loader.batches_per_epoch
        return run_record.join(self._before, record, job.start, epoch, MAX_ITERATIONS)

    def saved(self, path: str, whole: bool) -> Callable[[], None] | None:
        """Collects the record; returns the function that writes it, on rank 0."""
        record = self.collect(whole)
        return None if record is None else partial(record_file.write, path, record)
