"""A schedule bound to a rank: what to do at each step, and what to wait for before it."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import LibraryTransfer, Transfer
from hpcpar.kernels.interface import Array
from hpcpar.schedule.steps import Comm, Phase, Schedule, Step


class Program:
    """The steps of a schedule that this rank takes part in. All ranks make it at the same time:
    they compare their schedules.

    Attributes
    ----------
    seconds : numpy.ndarray
        [steps] of the last run: a compute step's duration, a communication step's exposed time
        (pack, post, wait, unpack).
    clock : callable
        Seconds, of which everything here is a difference.
    started_s, ended_s : numpy.ndarray
        [steps] when each began, and when a communication was complete, on this process's clock; NaN
        where it takes no part.
    waited_s : numpy.ndarray
        [steps] how long the program stood still at a communication's end.

    Parameters
    ----------
    mine : sequence of int
        The steps that this rank takes part in, in order.
    last : str
        The loss layer.
    reuses : callable
        True where the forward pass of a micro-batch computes what a forward movement of another has
        sent in the same place.
    """

    def __init__(
        self, schedule: Schedule, communicator: Communicator, mine: Sequence[int], last: str, reuses: Callable[[Comm, int], bool]
    ) -> None:
        self.schedule, self.communicator = schedule, communicator
        communicator.agree(schedule)
        n = len(schedule.steps)
        self.seconds = np.zeros(n)
        self.clock: Callable[[], float] = time.perf_counter
        self.started_s, self.ended_s, self.waited_s = np.full((3, n), np.nan)
        self.actions: dict[int, Callable[[], Any]] = {}
        self.transfers: dict[int, Transfer | LibraryTransfer] = {}
        #: What is done before a step, outside its time.
        self.before: dict[int, Callable[[], None]] = {}
        #: Arrays that must be zero at a step, and whose memory others have used.
        self.clears: dict[int, list[Array]] = {}
        #: Hears of every step before it begins, when everything that it waits for is there.
        self.watch: Callable[[int], None] | None = None
        self.mine = mine
        self._outputs = self._writing(lambda step: step.phase is Phase.FORWARD)
        self._gradients = self._writing(lambda step: step.phase is Phase.BACKWARD
                                        or step.layer == last)
        self.until = {i: self._until(i, reuses) for i in mine
                      if isinstance(schedule.steps[i], Comm)}
        waits: dict[int, list[int]] = {}
        for i, until in self.until.items():
            waits.setdefault(until, []).append(i)
        self._order = [(i, tuple(waits.get(i, ()))) for i in sorted({*mine, *waits, n})]

    def _until(self, i: int, reuses: Callable[[Comm, int], bool]) -> int:
        """The step before which this rank must have finished movement `i`."""
        step = self.schedule.steps[i]
        assert isinstance(step, Comm)
        if step.between and not step.wanter.holds(self.communicator.world.rank):
            return self._overwritten(step, reuses)
        return step.needed_by

    def _overwritten(self, sent: Comm, reuses: Callable[[Comm, int], bool]) -> int:
        """The step before which a rank that only sends must have sent: the pass that uses the same
        memory again.

        Gradients have one place for all micro-batches, and the loss makes its gradient in its
        forward pass.
        """
        if sent.phase not in (Phase.FORWARD, Phase.BACKWARD):
            return len(self.schedule.steps)
        back = sent.phase is Phase.BACKWARD
        found = [len(self.schedule.steps)]
        for part, places in (self._gradients if back else self._outputs).items():
            after = bisect.bisect_right(places, sent.index)
            if after < len(places) and part != sent.part and (back or reuses(sent, part)):
                found.append(places[after])
        return min(found)

    def _writing(self, writes: Callable[[Step], bool]) -> dict[int, list[int]]:
        """By micro-batch: those of this rank's steps that write, in order."""
        out: dict[int, list[int]] = {}
        for i in self.mine:
            if writes(self.schedule.steps[i]):
                out.setdefault(self.schedule.steps[i].part, []).append(i)
        return out

    def run(self) -> None:
        """Do every step of the list once, in order."""
        clock = self.clock
        communicator, actions, transfers = self.communicator, self.actions, self.transfers
        synchronize = communicator.backend.synchronize
        self.seconds[:] = 0
        for i, waits in self._order:
            for w in waits:
                t = clock()
                communicator.wait(transfers[w])
                now = clock()
                self.seconds[w] += now - t
                self.waited_s[w], self.ended_s[w] = now - t, now
            if i in self.before:
                self.before[i]()
            t = clock()
            for array in self.clears.get(i, ()):
                array[...] = 0
            if self.watch is not None:
                self.watch(i)
            if i in transfers:
                self.started_s[i] = t
                communicator.start(transfers[i])
            elif i in actions:
                self.started_s[i] = t
                communicator.progress()
                actions[i]()
                synchronize()
            else:
                continue
            self.seconds[i] += clock() - t
