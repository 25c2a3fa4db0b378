"""A schedule bound to a rank: what to do at each step, and what to wait for before it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import LibraryTransfer, Transfer
from hpcpar.kernels.interface import Array
from hpcpar.schedule.memory_plan.rank_steps import RankSteps


class Program:
    """A rank's part of a schedule, bound to what it does at each step.

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
    actions, transfers : dict
        The function of a compute step, and the transfer of a communication step.
    before : dict
        The function to call before a step, outside its time.
    clears : dict
        Arrays that must be zero at a step, and whose memory others have used.
    watch : callable or None
        Hears of every step before it begins, when everything that it waits for is there.
    """

    def __init__(self, steps: RankSteps, communicator: Communicator,
                 clears: dict[int, list[Array]]) -> None:
        self.steps, self.schedule, self.communicator = steps, steps.schedule, communicator
        n = len(steps.schedule.steps)
        self.seconds = np.zeros(n)
        self.clock: Callable[[], float] = time.perf_counter
        self.started_s, self.ended_s, self.waited_s = np.full((3, n), np.nan)
        self.actions: dict[int, Callable[[], None]] = {}
        self.transfers: dict[int, Transfer | LibraryTransfer] = {}
        self.before: dict[int, Callable[[], None]] = {}
        self.clears = clears
        self.watch: Callable[[int], None] | None = None
        waits: dict[int, list[int]] = {}
        for i, until in steps.until.items():
            waits.setdefault(until, []).append(i)
        self._order = [(i, tuple(waits.get(i, ()))) for i in sorted({*steps.mine, *waits, n})]

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
