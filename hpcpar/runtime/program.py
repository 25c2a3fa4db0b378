"""A schedule bound to a rank: each step's function or transfer, and the waits before it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.communicator import Communicator
from hpcpar.comm.transfer import Transfer
from hpcpar.kernels.interface import Array
from hpcpar.kernels.streams import Mark
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.steps import Phase


class _Span(Enum):
    """The activity of a program between two marks."""

    WORK = "work"
    WAIT = "wait"
    BETWEEN = "between"


class StepTimes(NamedTuple):
    """Times of a run's steps (s), [steps] each.

    On a GPU these are times of the compute stream, because the host runs ahead of it.

    Attributes
    ----------
    seconds
        A compute step's duration; a communication step's exposed time (pack, post, wait, unpack).
    started_s, ended_s
        When each step began, and when each communication was complete, on the clock of
        `time.perf_counter`; NaN where this rank takes no part.
    waited_s
        How long the program waited for each communication to end; NaN where this rank takes no
        part.
    """

    seconds: NDArray[np.float64]
    started_s: NDArray[np.float64]
    ended_s: NDArray[np.float64]
    waited_s: NDArray[np.float64]


class Program:
    """A rank's part of a schedule, bound to functions and transfers.

    Attributes
    ----------
    actions, transfers : dict
        The function of each compute step, and the transfer of each communication step.
    before : dict
        Functions to call before a step, outside its time.
    clears : dict
        Arrays to clear before a step.
    watch : callable or None
        Called with each step before it begins, after the step's waits.
    """

    def __init__(self, steps: RankSteps, communicator: Communicator,
                 clears: dict[int, list[Array]]) -> None:
        self.steps, self.schedule, self.communicator = steps, steps.schedule, communicator
        n = len(steps.schedule.steps)
        self.actions: dict[int, Callable[[], None]] = {}
        self.transfers: dict[int, Transfer] = {}
        self.before: dict[int, Callable[[], None]] = {}
        self.clears = clears
        self.watch: Callable[[int], None] | None = None
        self._marks: list[Mark] = []
        self._spans: list[tuple[int, _Span]] = []
        waits: dict[int, list[int]] = {}
        for i, until in steps.until.items():
            waits.setdefault(until, []).append(i)
        self._order = [(i, tuple(waits.get(i, ()))) for i in sorted({*steps.mine, *waits, n})]

    def run(self, first: int = 0, end: int = sys.maxsize) -> None:
        """Run steps `first` to `end` (exclusive) once, in order, and wait for all of their work.

        `first` is 0 or the previous call's `end`.
        """
        communicator, actions, transfers = self.communicator, self.actions, self.transfers
        mark = communicator.backend.mark
        #: A span lies between two consecutive marks.
        marks, spans = [mark()], list[tuple[int, _Span]]()
        if first:
            marks, spans = [*self._marks, *marks], [*self._spans, (first, _Span.BETWEEN)]
        for i, waits in self._order:
            if not first <= i < end:
                continue
            for w in waits:
                communicator.wait(transfers[w])
                spans.append((w, _Span.WAIT))
                marks.append(mark())
            if i in self.before:
                self.before[i]()
                spans.append((i, _Span.BETWEEN))
                marks.append(mark())
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
            spans.append((i, _Span.WORK))
            marks.append(mark())
        communicator.complete()
        self._marks, self._spans = marks, spans

    @cached_property
    def forward_end(self) -> int | None:
        """The first step after the whole batch's forward pass; None where some micro-batches start
        their backward pass before others end their forward pass.
        """
        forward = [step.phase is Phase.FORWARD for step in self.schedule.steps]
        end = forward.index(False) if False in forward else len(forward)
        return None if any(forward[end:]) else end

    def abandon(self, end: int) -> None:
        """End an iteration after a run of the steps before `end`: wait for messages in flight."""
        for i, waits in self._order:
            for w in waits:
                if w < end <= i:
                    self.communicator.wait(self.transfers[w])

    def times(self) -> StepTimes:
        """The step times of the last run."""
        n = len(self.schedule.steps)
        out = StepTimes(np.zeros(n), *np.full((3, n), np.nan))
        times_s = self.communicator.backend.times_s(self._marks).tolist()
        for (i, span), begin_s, end_s in zip(self._spans, times_s, times_s[1:], strict=False):
            if span is _Span.BETWEEN:
                continue
            out.seconds[i] += end_s - begin_s
            if span is _Span.WORK:
                out.started_s[i] = begin_s
            else:
                out.ended_s[i], out.waited_s[i] = end_s, end_s - begin_s
        return out
