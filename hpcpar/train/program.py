"""A schedule bound to a rank: what to do at each step, and what to wait for before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import LibraryTransfer, Transfer
from hpcpar.schedule.steps import Comm, Phase, Schedule, Step


class Program:
    """The steps of a schedule that this rank takes part in. All ranks make it at the same time: they compare their schedules.

    Attributes
    ----------
    seconds : numpy.ndarray
        [steps] of the last run: a compute step's duration, a communication step's exposed time (pack, post, wait, unpack).
    started_s : numpy.ndarray
        [steps] when each began, on this process's clock.
    """

    def __init__(self, schedule: Schedule, communicator: Communicator) -> None:
        self.schedule, self.communicator = schedule, communicator
        communicator.agree(schedule)
        n = len(schedule.steps)
        self.seconds = np.zeros(n)
        self.started_s = np.zeros(n)
        self.actions: dict[int, Callable[[], Any]] = {}
        self.transfers: dict[int, Transfer | LibraryTransfer] = {}
        #: What is done before a step, outside its time.
        self.before: dict[int, Callable[[], None]] = {}
        self._order: list[tuple[int, tuple[int, ...]]] = []

    def close(self, last: str, reuses: Callable[[Comm, int], bool]) -> None:
        """Fix the order of actions and waits, once everything is bound.

        Parameters
        ----------
        last : str
            The loss layer.
        reuses : callable
            True where the forward pass of a micro-batch computes what a forward movement of another has sent in the same place.
        """
        steps, rank = self.schedule.steps, self.communicator.world.rank
        waits: dict[int, list[int]] = {}
        for i in sorted(self.transfers):
            step = steps[i]
            assert isinstance(step, Comm)
            until = step.needed_by
            if step.between and not step.wanter.holds(rank):
                until = self._overwritten(step, last, reuses)
            waits.setdefault(until, []).append(i)
        mine = sorted({*self.actions, *self.transfers, *waits, len(steps)})
        self._order = [(i, tuple(waits.get(i, ()))) for i in mine]

    def _overwritten(self, sent: Comm, last: str, reuses: Callable[[Comm, int], bool]) -> int:
        """The step before which a rank that only sends must have sent: the pass that uses the same memory again.

        Gradients have one place for all micro-batches, and the loss makes its gradient in its forward pass.
        """
        steps = self.schedule.steps

        def again(step: Step) -> bool:
            if step.part == sent.part:
                return False
            if sent.phase is Phase.BACKWARD:
                return step.phase is Phase.BACKWARD or step.layer == last
            return step.phase is Phase.FORWARD and reuses(sent, step.part)

        if sent.phase not in (Phase.FORWARD, Phase.BACKWARD):
            return len(steps)
        mine = sorted({*self.actions, *self.transfers})
        return next((i for i in mine if i > sent.index and again(steps[i])), len(steps))

    def run(self) -> None:
        """Do every step of the list once, in order."""
        clock = time.perf_counter
        communicator, actions, transfers = self.communicator, self.actions, self.transfers
        synchronize = communicator.backend.synchronize
        self.seconds[:] = 0
        for i, waits in self._order:
            for w in waits:
                t = clock()
                communicator.wait(transfers[w])
                self.seconds[w] += clock() - t
            if i in self.before:
                self.before[i]()
            t = clock()
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
