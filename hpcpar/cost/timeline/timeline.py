"""Decides when each step of an iteration begins and ends, as every stage runs its steps in order.

A stage (all ranks, or the ranks of a pipeline stage) has a program and, beside it, a communication
stream for each level of the machine. A compute step occupies the program until it ends. A
communication starts when its sender's program reaches it and the level's links are free. It
overlaps with later steps, until a step needs it or the iteration ends.

If the program itself has to drive the messages, only a fraction of a communication overlaps. If it
polls for messages now and then, this fraction progresses more slowly during computation. For a
message between two stages, each of the two programs drives half of the rest.

Where a host submits the steps to a device, a step begins when its host has submitted it, too.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hpcpar.cost.step_prices import StepPrice
from hpcpar.cost.timeline.clock import ProgramClock, later
from hpcpar.plan.config import Flags, Floats, Ints
from hpcpar.schedule.steps import Comm, Compute, Step

#: A time: `float` for one plan, `Floats` for a family.
Seconds = TypeVar("Seconds", bound=Floats)


@dataclass(frozen=True)
class Span(Generic[Seconds]):
    """When a step runs, in seconds from the start of the iteration, and on which stream."""

    start_s: Seconds
    end_s: Seconds
    stream: str = "compute"


@dataclass(frozen=True)
class StageTime(Generic[Seconds]):
    """Times of an iteration in which a stage's program does not compute.

    `exposed_s` maps the index of a communication to its exposed time. `bubble_s` is the time in
    which the stage waits for the programs of other stages, or for its host to submit a step.
    """

    exposed_s: dict[int, Seconds]
    bubble_s: Seconds


@dataclass(frozen=True)
class Timeline(Generic[Seconds]):
    """The timeline of an iteration.

    Attributes
    ----------
    spans : tuple of Span
        One per step.
    waits_s : tuple of float
        Exposed communication of each step, over all stages.
    """

    spans: tuple[Span[Seconds], ...]
    waits_s: tuple[Seconds, ...]
    total_s: Seconds
    stages: tuple[StageTime[Seconds], ...] = ()


class _Stage:
    """A stage of the timeline; see `timeline` for the parameters."""

    def __init__(self, hidden: float, levels: int, rate: float, delay_s: float,
                 submit_s: float) -> None:
        self.clock, self._delay_s = ProgramClock(rate), delay_s
        self._submit_s, self._submitted_s = submit_s, 0.0
        self.exposed_s: dict[int, Floats] = {}
        self.bubble_s: Floats = 0.0
        self._busy = 1.0 - hidden
        self._free: list[Floats] = [0.0] * levels  # when links become free, on the network's clock
        self._ends: dict[int, Floats] = {}

    def submit(self) -> None:
        """Wait until the host, which runs ahead, has submitted one more step."""
        self._submitted_s += self._submit_s
        self.idle(later(self._submitted_s - self.clock.program_s, 0.0))

    def start(self, i: int, step: Comm, price: StepPrice) -> tuple[Floats, Floats]:
        """Start communication `i`; returns its start and end on the program's clock, at full speed.
        """
        clock, cost = self.clock, price.seconds
        ahead = clock.program_s - clock.network_s
        free = self._free_s(price.level)
        begin = later(clock.network_s + (self._delay_s if step.sums_samples else 0.0), free)
        end = begin + cost if price.end_s is None else price.end_s(begin + ahead) - ahead
        clock.mark((i, "begin"), begin)
        clock.mark((i, "end"), end)
        # a communication of zero seconds occupies no links, and no step waits for it
        happens = isinstance(cost, float) and cost > 0
        self._ends[i] = end if happens else np.where(np.greater(cost, 0), end, 0.0)
        self._occupy(price.level, self._ends[i] - price.latency_s)
        if self._busy > 0.0:
            share = 1.0 if step.stage in step.receivers else 0.5
            self._expose(i, share * self._busy * cost)
        if step.stage not in step.receivers:  # the message is on the network
            begin = end - cost
        return begin + ahead, end + ahead

    def _free_s(self, level: Ints) -> Floats:
        if isinstance(level, int):  # the same for all plans
            return self._free[level]
        return np.choose(level, [np.asarray(free) for free in self._free])

    def _occupy(self, level: Ints, until: Floats) -> None:
        if isinstance(level, int):
            self._free[level] = later(self._free[level], until)
            return
        for i, free in enumerate(self._free):
            self._free[i] = np.where(np.equal(level, i), np.maximum(free, until), free)

    def _expose(self, i: int, seconds: Floats) -> None:
        """Drive communication `i`."""
        self.clock.drive(seconds)
        self.exposed_s[i] = self.exposed_s.get(i, 0.0) + seconds

    def finish(self, i: int, where: Flags) -> None:
        """Wait for a communication that this stage started, in the plans `where`."""
        end_s = self._ends[i] if where is True else np.where(where, self._ends[i], 0.0)
        self.exposed_s[i] = self.exposed_s.get(i, 0.0) + self.clock.reach(end_s)

    def receive(self, i: int, step: Comm, seconds: Floats, begin_s: Floats, end_s: Floats) -> None:
        """Wait for a communication from another stage; until it starts, the wait is bubble.

        If several stages receive it, their whole wait is bubble.
        """
        if len(step.receivers) > 1:
            self.idle(later(end_s - self.clock.program_s, 0.0))
            return
        busy_s = self._busy * seconds / 2
        wait_s = later(end_s - busy_s - self.clock.program_s, 0.0)
        exposed_s = np.minimum(wait_s, later(end_s - begin_s - 2 * busy_s, 0.0))
        self.idle(wait_s - exposed_s)
        self._expose(i, exposed_s + busy_s)

    def idle(self, seconds: Floats) -> None:
        """Idle while other stages, or the host, work."""
        self.clock.drive(seconds)
        self.bubble_s = self.bubble_s + seconds


class _Wait(NamedTuple):
    """Step `by` needs communication `i`, in the plans `where`."""

    by: int
    i: int
    where: Flags


def _waits(steps: Sequence[Step], stages: int) -> list[dict[int, list[_Wait]]]:
    """For each stage: its step (or the end) -> the communications that this step waits for."""
    own: list[list[int]] = [[] for _ in range(stages)]
    needed: list[tuple[_Wait, Comm]] = []
    for i, step in enumerate(steps):
        own[step.stage].append(i)
        if isinstance(step, Comm):
            if isinstance(step.needed_by, np.ndarray):
                needed += [(_Wait(by, i, step.needed_by == by), step)
                           for by in np.unique(step.needed_by)]
            else:
                needed.append((_Wait(step.needed_by, i, True), step))
    out: list[dict[int, list[_Wait]]] = [defaultdict(list) for _ in range(stages)]
    for wait, comm in sorted(needed, key=lambda pair: pair[0][:2]):
        for stage in comm.receivers:
            following = bisect.bisect_left(own[stage], wait.by)
            at = own[stage][following] if following < len(own[stage]) else len(steps)
            out[stage][at].append(wait)
    return out


def timeline(steps: Sequence[Step], prices: Sequence[StepPrice], hidden: float = 1.0,
             levels: int = 1, rate: float = 1.0, delay_s: float = 0.0,
             submit_s: float = 0.0) -> Timeline[Floats]:
    """Arrange the steps of an iteration in time.

    Parameters
    ----------
    steps, prices : sequence
        The steps, in the order of the schedule, and the price of each. In a family of plans,
        `Comm.needed_by` may have one entry per plan.
    hidden : float
        Fraction of a communication that computation can hide; the program drives the rest.
    rate : float
        Progress rate of the hidden fraction while the program computes, relative to its rate while
        the program waits; above 0, up to 1. Messages between stages keep their full rate.
    delay_s : float
        Time from when its sender reaches a sum over samples until it may begin.
    submit_s : float
        Host time to submit a step.
    """
    count = 1 + max((step.stage for step in steps), default=0)
    stages = [_Stage(hidden, levels, rate, delay_s, submit_s) for _ in range(count)]
    waits = _waits(steps, count)
    sent_s: dict[int, tuple[Floats, Floats]] = {}  # start and end of each communication
    begins: list[Floats] = []

    def wait(number: int, at: int) -> None:
        for _, i, where in waits[number].pop(at, ()):
            step = steps[i]
            if step.stage == number:
                stages[number].finish(i, where)
            elif isinstance(step, Comm):
                stages[number].receive(i, step, prices[i].seconds, *sent_s[i])

    for i, (step, price) in enumerate(zip(steps, prices, strict=True)):
        stage = stages[step.stage]
        wait(step.stage, i)
        if submit_s:
            stage.submit()
        begins.append(stage.clock.program_s)
        if isinstance(step, Compute):
            stage.clock.compute(price.seconds)
        else:
            sent_s[i] = stage.start(i, step, price)
    total: Floats = 0.0
    for number, stage in enumerate(stages):
        wait(number, len(steps))
        total = later(total, stage.clock.program_s)
    for stage in stages if count > 1 else ():
        stage.idle(total - stage.clock.program_s)
    spans: list[Span[Floats]] = []
    waited: list[Floats] = [0.0] * len(steps)
    for i, (step, begin) in enumerate(zip(steps, begins, strict=True)):
        marks = stages[step.stage].clock.marks_s
        if isinstance(step, Compute):
            spans.append(Span(begin, begin + prices[i].seconds))
        elif step.stage in step.receivers:
            spans.append(Span(marks[i, "begin"], marks[i, "end"], "network"))
        else:
            spans.append(Span(*sent_s[i], "network"))
    for stage in stages:
        for i, seconds in stage.exposed_s.items():
            waited[i] = waited[i] + seconds
    times = tuple(StageTime(stage.exposed_s, stage.bubble_s) for stage in stages)
    return Timeline(tuple(spans), tuple(waited), total, times)
