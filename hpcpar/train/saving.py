"""Saving a training as it goes: when, and by whom. The ranks collect what is to be saved, a thread
of rank 0 writes it while they go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import IntFlag
from typing import TypeAlias

from hpcpar.comm.world import World
from hpcpar.errors import InputError, RunError
from hpcpar.signals import StopRequest
from hpcpar.train.job_options import Interval

#: Shortest time between two records of a run (s). Longer where they would take more than this part
#: of the run.
RECORD_S, RECORD_PART = 10.0, 0.01


#: Collects a file's content on all ranks; returns what writes the file on rank 0, None on others.
Collect: TypeAlias = "Callable[[], Callable[[], None] | None]"


class Ask(IntFlag):
    """Requests of one rank to all. Their sum travels with the loss: any number of ranks may ask to
    stop; rank 0 alone asks for the rest.
    """

    NOTHING = 0
    STOP = 1
    CHECKPOINT = 1 << 24
    RECORD = 1 << 25


class BackgroundWriter:
    """Writes files in a thread, one after the other; what a rank hands over must not change."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "hpcpar-writer")
        self._pending: list[Future[None]] = []
        #: Seconds that the last file took.
        self.took_s = 0.0

    def submit(self, write: Callable[[], None]) -> None:
        """Writes a file after those before it."""
        self._pending.append(self._pool.submit(self._timed, write))

    def _timed(self, write: Callable[[], None]) -> None:
        begin_s = time.monotonic()
        write()
        self.took_s = time.monotonic() - begin_s

    @property
    def has_failed(self) -> bool:
        """True where a file could not be written."""
        return any(f.done() and f.exception() is not None for f in self._pending)

    def finish(self) -> None:
        """Waits for all files.

        Raises
        ------
        RunError
            One could not be written.
        """
        pending, self._pending = self._pending, []
        try:
            for future in pending:
                future.result()
        except InputError as err:
            raise RunError(str(err)) from err


class Saver:
    """Decides, the same on every rank, when a training is saved and when it stops.

    Parameters
    ----------
    save, record : Collect or None
        Of a checkpoint and of the run's record; None where it is not wanted.
    stop : StopRequest
        Of this rank.
    """

    def __init__(self, world: World, every: Interval, stop: StopRequest,
                 save: Collect | None, record: Collect | None) -> None:
        self._world, self._every, self._stop = world, every, stop
        self._save, self._record = save, record
        self._writer = BackgroundWriter()
        now = time.monotonic()
        #: When the last checkpoint and the last record were asked for.
        self._saved_s, self._recorded_s = now, now
        self._record_took_s = 0.0
        self._asked = 0
        #: Iteration of the last checkpoint.
        self._saved_step = -1
        #: Why all ranks stop; empty while they go on.
        self.reason = ""

    def hear(self, asked: int) -> bool:
        """Takes what all ranks have asked for in an iteration; True where all ranks stop."""
        self._asked |= asked & (Ask.CHECKPOINT | Ask.RECORD)
        if asked % Ask.CHECKPOINT and not self.reason:
            reasons = self._world.comm.allgather(self._stop.reason)
            self.reason = next(f"{reason} on rank {rank}" if reason.startswith("SIG") else reason
                               for rank, reason in enumerate(reasons) if reason)
        return bool(self.reason)

    def ask(self) -> Ask:
        """This rank's requests for the next iteration; rank 0's clock decides."""
        out = Ask.STOP if self._stop.due(2 * self._writer.took_s) else Ask.NOTHING
        if self._world.rank:
            return out
        now, every = time.monotonic(), self._every.seconds
        if (every and now - self._saved_s > every) or self._writer.has_failed:
            out, self._saved_s = out | Ask.CHECKPOINT, now
        took_s = self._record_took_s + self._writer.took_s
        if now - self._recorded_s > max(RECORD_S, took_s / RECORD_PART):
            out, self._recorded_s = out | Ask.RECORD, now
        return out

    def after(self, step: int, epoch_done: bool) -> None:
        """Saves, where it is time, what `step` iterations have made."""
        every, asked = self._every, Ask(self._asked)
        self._asked = 0
        by_epoch = not every.steps and not every.seconds and epoch_done
        if by_epoch or Ask.CHECKPOINT in asked or (every.steps and step % every.steps == 0):
            self._checkpoint(step)
        if Ask.RECORD in asked:
            self.record()

    def _checkpoint(self, step: int) -> None:
        if self._save is None or step == self._saved_step:
            return
        self._world.agree(self._writer.finish)  # memory for one at a time
        write = self._save()
        if write is not None:
            self._writer.submit(write)
        self._saved_step = step

    def record(self) -> None:
        """Saves the record of the run so far. Every rank must call it."""
        if self._record is None:
            return
        begin_s = time.monotonic()
        write = self._record()
        if write is not None:
            self._writer.submit(write)
        self._record_took_s = time.monotonic() - begin_s

    def finish(self, step: int) -> None:
        """Saves the end of the training, and waits until all is written.

        Raises
        ------
        RunError
            On every rank: a file could not be written.
        """
        self._checkpoint(step)
        self.record()
        self._world.agree(self._writer.finish)
