"""The timeline of an iteration: every stage runs its steps of the schedule in order.

A stage (all ranks, or the ranks of a pipeline stage) has a program and, beside it, a communication
stream for each level of the machine. A compute step occupies the program until it ends. A
communication starts when its sender's program reaches it and the level's links are free. It
overlaps with later steps, until a step needs it or the iteration ends.

If the program itself has to drive the messages, only a fraction of a communication overlaps. If it
polls for messages now and then, this fraction progresses more slowly during computation. For a
message between two stages, each of the two programs drives half of the rest.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from hpcpar.cost.timeline.clock import ProgramClock, later
from hpcpar.plan.config import Flags, Floats, Ints

#: A time: `float` for one plan, `Floats` for a family.
Seconds = TypeVar("Seconds", bound=Floats)


class Item(NamedTuple):
    """A step of the timeline; numbers may be arrays with one entry per plan of a family.

    Attributes
    ----------
    needed_by : int or None
        Index of the first step that needs this communication (the number of steps: the end of the
        iteration). None for a compute step.
    level : int
        Level of the machine that the communication crosses.
    stage : int
        The stage that computes or sends.
    receivers : tuple of int
        Stages that wait for the communication.
    latency_s : float
        Time at the end of a message between stages in which the next one may use the links.
    end_s : callable, optional
        Maps the start times of a communication on all ranks to its end times, where ranks wait for
        each other. `seconds` is its duration if all start at once.
    """

    seconds: Floats
    needed_by: Ints | None = None
    level: Ints = 0
    stage: int = 0
    receivers: tuple[int, ...] = (0,)
    latency_s: float = 0.0
    end_s: Callable[[Floats], Floats] | None = None


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
    which the stage waits for the programs of other stages.
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

    def __init__(self, hidden: float, levels: int, rate: float) -> None:
        self.clock = ProgramClock(rate)
        self.exposed_s: dict[int, Floats] = {}
        self.bubble_s: Floats = 0.0
        self._busy = 1.0 - hidden
        self._free: list[Floats] = [0.0] * levels  # when links become free, on the network's clock
        self._ends: dict[int, Floats] = {}

    def start(self, i: int, item: Item) -> tuple[Floats, Floats]:
        """Start communication `i`; returns its start and end on the program's clock, at full speed.
        """
        clock, cost = self.clock, item.seconds
        ahead = clock.program_s - clock.network_s
        free = self._free_s(item.level)
        begin = later(clock.network_s, free)
        end = begin + cost if item.end_s is None else item.end_s(begin + ahead) - ahead
        clock.mark((i, "begin"), begin)
        clock.mark((i, "end"), end)
        # a communication of zero seconds occupies no links, and no step waits for it
        happens = isinstance(cost, float) and cost > 0
        self._ends[i] = end if happens else np.where(np.greater(cost, 0), end, 0.0)
        self._occupy(item.level, self._ends[i] - item.latency_s)
        if self._busy > 0.0:
            share = 1.0 if item.stage in item.receivers else 0.5
            self._expose(i, share * self._busy * cost)
        if item.stage not in item.receivers:  # the message is on the network
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

    def receive(self, i: int, item: Item, begin_s: Floats, end_s: Floats) -> None:
        """Wait for a communication from another stage; until it starts, the wait is bubble.

        If several stages receive it, their whole wait is bubble.
        """
        if len(item.receivers) > 1:
            self.idle(later(end_s - self.clock.program_s, 0.0))
            return
        busy_s = self._busy * item.seconds / 2
        wait_s = later(end_s - busy_s - self.clock.program_s, 0.0)
        exposed_s = np.minimum(wait_s, later(end_s - begin_s - 2 * busy_s, 0.0))
        self.idle(wait_s - exposed_s)
        self._expose(i, exposed_s + busy_s)

    def idle(self, seconds: Floats) -> None:
        """Idle while other stages work."""
        self.clock.drive(seconds)
        self.bubble_s = self.bubble_s + seconds


class _Wait(NamedTuple):
    """Step `by` needs communication `i`, in the plans `where`."""

    by: int
    i: int
    where: Flags


def _waits(items: Sequence[Item], stages: int) -> list[dict[int, list[_Wait]]]:
    """For each stage: its step (or the end) -> the communications that this step waits for."""
    steps: list[list[int]] = [[] for _ in range(stages)]
    needed: list[_Wait] = []
    for i, item in enumerate(items):
        steps[item.stage].append(i)
        if isinstance(item.needed_by, np.ndarray):
            needed += [_Wait(by, i, item.needed_by == by) for by in np.unique(item.needed_by)]
        elif item.needed_by is not None:
            needed.append(_Wait(item.needed_by, i, True))
    out: list[dict[int, list[_Wait]]] = [defaultdict(list) for _ in range(stages)]
    for wait in sorted(needed, key=lambda wait: wait[:2]):
        for stage in items[wait.i].receivers:
            following = bisect.bisect_left(steps[stage], wait.by)
            step = steps[stage][following] if following < len(steps[stage]) else len(items)
            out[stage][step].append(wait)
    return out


def timeline(items: Sequence[Item], hidden: float = 1.0, levels: int = 1,
             rate: float = 1.0) -> Timeline[Floats]:
    """Arrange the steps of an iteration in time.

    Parameters
    ----------
    items : sequence of Item
        The steps, in the order of the schedule.
    hidden : float
        Fraction of a communication that computation can hide; the program drives the rest.
    rate : float
        Progress rate of the hidden fraction while the program computes, relative to its rate while
        the program waits; above 0, up to 1. Messages between stages keep their full rate.
    """
    count = 1 + max((item.stage for item in items), default=0)
    stages = [_Stage(hidden, levels, rate) for _ in range(count)]
    waits = _waits(items, count)
    sent_s: dict[int, tuple[Floats, Floats]] = {}  # start and end of each communication
    begins: list[Floats] = []

    def wait(number: int, step: int) -> None:
        for _, i, where in waits[number].pop(step, ()):
            if items[i].stage == number:
                stages[number].finish(i, where)
            else:
                stages[number].receive(i, items[i], *sent_s[i])

    for i, item in enumerate(items):
        stage = stages[item.stage]
        wait(item.stage, i)
        begins.append(stage.clock.program_s)
        if item.needed_by is None:
            stage.clock.compute(item.seconds)
        else:
            sent_s[i] = stage.start(i, item)
    total: Floats = 0.0
    for number, stage in enumerate(stages):
        wait(number, len(items))
        total = later(total, stage.clock.program_s)
    for stage in stages if count > 1 else ():
        stage.idle(total - stage.clock.program_s)
    spans: list[Span[Floats]] = []
    waited: list[Floats] = [0.0] * len(items)
    for i, (item, begin) in enumerate(zip(items, begins, strict=True)):
        marks = stages[item.stage].clock.marks_s
        if item.needed_by is None:
            spans.append(Span(begin, begin + item.seconds))
        elif item.stage in item.receivers:
            spans.append(Span(marks[i, "begin"], marks[i, "end"], "network"))
        else:
            spans.append(Span(*sent_s[i], "network"))
    for stage in stages:
        for i, seconds in stage.exposed_s.items():
            waited[i] = waited[i] + seconds
    times = tuple(StageTime(stage.exposed_s, stage.bubble_s) for stage in stages)
    return Timeline(tuple(spans), tuple(waited), total, times)
