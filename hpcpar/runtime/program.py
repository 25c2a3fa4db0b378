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
from hpcpar.schedule.steps import Phase, Step


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


class Notes(NamedTuple):
    """The marks of a run: a span of a step lies between two consecutive ones."""

    marks: list[Mark]
    spans: list[tuple[int, _Span]]


class Program:
    """A rank's part of a schedule, bound to functions and transfers.

    Attributes
    ----------
    actions, transfers : dict
        The function of each compute step, and the transfer of each communication step.
    loads, before : dict
        Functions to call before a step, outside its time; loads take the iteration's own arrays.
    clears : dict
        Arrays to clear before a step.
    watch : callable or None
        Called with each step before it begins, after the step's waits.
    notes : Notes
        The marks of the last run; the last but one stay valid as well.
    """

    def __init__(self, steps: RankSteps, communicator: Communicator,
                 clears: dict[int, list[Array]]) -> None:
        self.steps, self.schedule, self.communicator = steps, steps.schedule, communicator
        n = len(steps.schedule.steps)
        self.actions: dict[int, Callable[[], None]] = {}
        self.transfers: dict[int, Transfer] = {}
        self.loads: dict[int, Callable[[], None]] = {}
        self.before: dict[int, Callable[[], None]] = {}
        self.clears = clears
        self.watch: Callable[[int], None] | None = None
        self.notes, self._earlier = Notes([], []), Notes([], [])
        #: The actions of joined steps, unless the program is watched.
        self.joint: dict[int, Callable[[], None]] = {}
        #: Steps whose work is done by one action, and their shares of its time.
        self._shares: list[tuple[list[int], NDArray[np.float64]]] = []
        waits: dict[int, list[int]] = {}
        for i, until in steps.until.items():
            waits.setdefault(until, []).append(i)
        self.order = [(i, tuple(waits.get(i, ()))) for i in sorted({*steps.mine, *waits, n})]

    def run(self, first: int = 0, end: int = sys.maxsize, noted: bool = True) -> None:
        """Run steps `first` to `end` (exclusive) once, in order. A GPU may not have finished them.

        `first` is 0 or the previous call's `end`. Only runs that are `noted` have step times.
        """
        communicator, actions, transfers = self.communicator, self.actions, self.transfers
        joint = self.joint if self.watch is None else {}
        note = self._noting(first) if noted else _not_noted
        for i, waits in self.order:
            if not first <= i < end:
                continue
            for w in waits:
                communicator.wait(transfers[w])
                note(w, _Span.WAIT)
            for calls in (self.loads, self.before):
                if i in calls:
                    calls[i]()
                    note(i, _Span.BETWEEN)
            for array in self.clears.get(i, ()):
                array[...] = 0
            if self.watch is not None:
                self.watch(i)
            if i in transfers:
                communicator.start(transfers[i])
            elif i in actions:
                communicator.progress()
                (joint[i] if i in joint else actions[i])()
            else:
                continue
            note(i, _Span.WORK)

    def _noting(self, first: int) -> Callable[[int, _Span], None]:
        """Begin the notes of a run; the function ends a span. Old marks are used again."""
        mark = self.communicator.backend.mark
        if first == 0:
            self.notes, self._earlier = self._earlier, self.notes
            self.notes.spans.clear()
        marks, spans = self.notes

        def note(step: int, span: _Span) -> None:
            spans.append((step, span))
            at = len(spans)
            if at < len(marks):
                marks[at] = mark(marks[at])
            else:
                marks.append(mark())

        if first:
            note(first, _Span.BETWEEN)
        elif marks:
            marks[0] = mark(marks[0])
        else:
            marks.append(mark())
        return note

    def neighbors(self, chosen: Callable[[Step], bool]) -> list[list[int]]:
        """Runs of chosen compute steps with nothing between them, not even a wait."""
        found: list[list[int]] = [[]]
        for i, waits in self.order:
            is_chosen = i in self.actions and chosen(self.schedule.steps[i])
            if waits or i in self.clears or not is_chosen:
                found.append([])
            if is_chosen:
                found[-1].append(i)
        return [steps for steps in found if steps]

    def join(self, action: Callable[[], None], weights: dict[int, int]) -> None:
        """Let one action do several steps, which share its time in proportion to `weights`."""
        *others, last = weights
        self.joint |= dict.fromkeys(others, _nothing)
        self.joint[last] = action
        whole = sum(weights.values()) or 1
        self._shares.append((list(weights), np.array([*weights.values()]) / whole))

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
        for i, waits in self.order:
            for w in waits:
                if w < end <= i:
                    self.communicator.wait(self.transfers[w])

    def times(self, notes: Notes | None = None) -> StepTimes:
        """The step times of the last run, or of the run with these notes."""
        n, (marks, spans) = len(self.schedule.steps), notes or self.notes
        out = StepTimes(np.zeros(n), *np.full((3, n), np.nan))
        times_s = self.communicator.backend.times_s(marks[:len(spans) + 1]).tolist()
        for (i, span), begin_s, end_s in zip(spans, times_s, times_s[1:], strict=False):
            if span is _Span.BETWEEN:
                continue
            out.seconds[i] += end_s - begin_s
            if span is _Span.WORK:
                out.started_s[i] = begin_s
            else:
                out.ended_s[i], out.waited_s[i] = end_s, end_s - begin_s
        for steps, shares in self._shares:
            took_s = out.seconds[steps].sum()
            out.seconds[steps] = took_s * shares
            out.started_s[steps] = out.started_s[steps[0]] + took_s * (np.cumsum(shares) - shares)
        return out


def _nothing() -> None:
    """The action of a step whose work another step does."""


def _not_noted(step: int, span: _Span) -> None:
    """The end of a span in a run without step times."""
