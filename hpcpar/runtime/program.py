"""A schedule bound to a rank: what to do at each step, and what to wait for before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.kernels.interface import Array, Mark
from hpcpar.schedule.memory_plan.rank_steps import RankSteps


class Program:
    """A rank's part of a schedule, bound to what it does at each step.

    Attributes
    ----------
    seconds : numpy.ndarray
        [steps] of the last run: a compute step's duration, a communication step's exposed time
        (pack, post, wait, unpack).
    started_s, ended_s : numpy.ndarray
        [steps] when each began, and when a communication was complete, on the clock of
        `time.perf_counter`; NaN where this rank takes no part. On a GPU these are times of its
        compute stream: the host runs ahead of it.
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
        self.started_s, self.ended_s, self.waited_s = np.full((3, n), np.nan)
        self.actions: dict[int, Callable[[], None]] = {}
        self.transfers: dict[int, Transfer] = {}
        self.before: dict[int, Callable[[], None]] = {}
        self.clears = clears
        self.watch: Callable[[int], None] | None = None
        waits: dict[int, list[int]] = {}
        for i, until in steps.until.items():
            waits.setdefault(until, []).append(i)
        self._order = [(i, tuple(waits.get(i, ()))) for i in sorted({*steps.mine, *waits, n})]

    def run(self) -> None:
        """Do every step of the list once, in order; returns when all of it is done."""
        communicator, actions, transfers = self.communicator, self.actions, self.transfers
        mark = communicator.backend.mark
        worked: list[int] = []
        waited: list[int] = []
        #: beginning and end of the work, and of the wait, of these steps
        work_marks: list[Mark] = []
        wait_marks: list[Mark] = []
        for i, waits in self._order:
            for w in waits:
                begin = mark()
                communicator.wait(transfers[w])
                waited.append(w)
                wait_marks += begin, mark()
            if i in self.before:
                self.before[i]()
            begin = mark()
            for array in self.clears.get(i, ()):
                array[...] = 0
            if self.watch is not None:
                self.watch(i)
            if i in transfers:
                communicator.start(transfers[i])
            elif i in actions:
                communicator.progress()
                actions[i]()
            else:
                continue
            worked.append(i)
            work_marks += begin, mark()
        communicator.complete()
        self._note(worked, work_marks, waited, wait_marks)

    def _note(self, worked: list[int], work_marks: list[Mark], waited: list[int],
              wait_marks: list[Mark]) -> None:
        """Turn the marks of a run into seconds."""
        times_s = self.communicator.backend.times_s([*work_marks, *wait_marks])
        work_s, wait_s = np.split(times_s.reshape(-1, 2), [len(worked)])
        self.seconds[:] = 0
        self.started_s[worked] = work_s[:, 0]
        self.seconds[worked] = work_s[:, 1] - work_s[:, 0]
        self.ended_s[waited] = wait_s[:, 1]
        self.waited_s[waited] = wait_s[:, 1] - wait_s[:, 0]
        self.seconds[waited] += self.waited_s[waited]
