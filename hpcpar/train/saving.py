"""Checkpoints and records during training: all ranks collect the content, then a thread on rank 0
writes the file while the training continues.

The record is written before each checkpoint, so that after a kill at any moment it has every
iteration that the newest checkpoint has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from hpcpar.comm.world import World
from hpcpar.io.background_writer import BackgroundWriter
from hpcpar.process.signals import StopRequest
from hpcpar.train.job_options import SaveInterval
from hpcpar.train.rank_requests import Ask

#: Shortest time between two records of a run (s), and the largest share of the run's time that
#: records may take: if they are slow, they are written less often.
RECORD_S, RECORD_SHARE = 10.0, 0.01

#: Collects a file's content on all ranks; returns the function that writes the file on rank 0, None
#: on the others.
Collect: TypeAlias = "Callable[[], Callable[[], None] | None]"
#: The same for the record of the run: the whole one (True), or one with fewer step times.
CollectRecord: TypeAlias = "Callable[[bool], Callable[[], None] | None]"


class Saver:
    """Decides, identically on every rank, when to save a training run and when to stop it.

    Parameters
    ----------
    stop : StopRequest
        Requests to this rank.
    save : Collect or None
        Collects a checkpoint; None disables it.
    record : CollectRecord or None
        Collects the record of the run; None disables it.
    """

    def __init__(self, world: World, every: SaveInterval, stop: StopRequest,
                 save: Collect | None, record: CollectRecord | None) -> None:
        self._world, self._every, self._stop = world, every, stop
        self._save, self._record = save, record
        self._writer = BackgroundWriter()
        now = time.monotonic()
        #: Times of the last requests for a checkpoint and a record.
        self._saved_s, self._recorded_s = now, now
        self._record_took_s = 0.0
        self._asked = 0
        #: Iteration of the last checkpoint.
        self._saved_step = -1
        #: Why all ranks stop; empty while they continue.
        self.reason = ""

    def receive(self, asked: int) -> bool:
        """Takes the sum of all ranks' requests; returns True if all ranks must stop."""
        self._asked |= asked & (Ask.CHECKPOINT | Ask.RECORD)
        if asked % Ask.CHECKPOINT and not self.reason:
            reasons = self._world.comm.allgather(self._stop.reason)
            self.reason = next(f"{reason} on rank {rank}" if reason.startswith("SIG") else reason
                               for rank, reason in enumerate(reasons) if reason)
        return bool(self.reason)

    def ask(self) -> Ask:
        """This rank's requests for the next iteration. Rank 0's clock decides when to save."""
        requests = Ask.STOP if self._stop.due(2 * self._writer.took_s) else Ask.NOTHING
        if self._world.rank:
            return requests
        now, every_s = time.monotonic(), self._every.seconds
        if (every_s and now - self._saved_s > every_s) or self._writer.has_failed:
            requests, self._saved_s = requests | Ask.CHECKPOINT, now
        took_s = self._record_took_s + self._writer.took_s
        if now - self._recorded_s > max(RECORD_S, took_s / RECORD_SHARE):
            requests, self._recorded_s = requests | Ask.RECORD, now
        return requests

    def needs_results(self, step: int, epoch_done: bool) -> bool:
        """True if all ranks save or stop after iteration `step`, so its result must be read."""
        return bool(self.reason or self._asked) or self._by_number(step, epoch_done)

    def _by_number(self, step: int, epoch_done: bool) -> bool:
        """True if the number of the iteration makes a checkpoint due."""
        return not self._every.seconds and self._every.may_end(step, epoch_done)

    def save_if_due(self, step: int, epoch_done: bool) -> None:
        """Writes a checkpoint and a record after iteration `step` if they are due."""
        asked = Ask(self._asked)
        self._asked = 0
        by_number = self._by_number(step, epoch_done)
        if self._save is not None and (by_number or Ask.CHECKPOINT in asked):
            self._checkpoint(step)
        elif Ask.RECORD in asked:
            self.record()

    def _checkpoint(self, step: int, ends: bool = False) -> None:
        self._world.agree(self._writer.finish)  # memory holds one checkpoint at a time
        self.record(ends)
        if self._save is not None and step != self._saved_step:
            self._submit(self._save)
            self._saved_step = step

    def record(self, ends: bool = False) -> None:
        """Saves the record of the run so far, the whole one if the run ends. Collective."""
        if self._record is None:
            return
        begin_s, record = time.monotonic(), self._record
        self._submit(lambda: record(ends))
        self._recorded_s = begin_s
        self._record_took_s = time.monotonic() - begin_s

    def _submit(self, collect: Collect) -> None:
        write = collect()
        if write is not None:
            self._writer.submit(write)

    def finish(self, step: int) -> None:
        """Saves the final state, and waits until all files are written.

        Raises
        ------
        RunError
            A file could not be written. Every rank raises it.
        """
        self._checkpoint(step, ends=True)
        self._world.agree(self._writer.finish)
