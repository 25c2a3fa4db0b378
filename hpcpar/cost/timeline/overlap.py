"""The timeline of an iteration: every stage walks its steps of the list that is executed.

A stage (all ranks, or some of a pipeline's) has a program and, beside it, a stream of communication
for each level of the machine. A compute step occupies the program until it ends. A communication
starts when the program of its sender reaches it and the level's links are free, and runs beside
what follows; a step waits for every communication that it needs, the end of the iteration for all.

Where the program itself has to drive the messages, only a part of a communication runs beside it;
and where it looks after them now and then, that part goes on more slowly while it computes. Between
two stages each program drives half of what is not hidden.
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

#: A time: `float` of one plan, `Floats` of a family.
Seconds = TypeVar("Seconds", bound=Floats)


class Item(NamedTuple):
    """A step in time; numbers may be arrays with an entry for each case of a family.

    Attributes
    ----------
    needed_by : int or None
        Of a communication: index of the first step that needs it (the number of steps: the end), in
        every case. None for computing.
    level : int
        Of a communication: the level of the machine that it crosses.
    stage : int
        The stage that computes, or sends.
    receivers : tuple of int
        Of a communication: the stages that wait for it.
    latency_s : float
        Of a message between stages: the part in which the links are free for the next one.
    end_s : callable, optional
        Maps the times at which ranks (the cases) begin a communication to those at which they are
        done, where they wait for each other. `seconds` is its duration if all begin at once.
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
    """When a step ran (s from the start of the iteration), and on which stream: ``compute`` or a
    level of the machine.
    """

    start_s: Seconds
    end_s: Seconds
    stream: str = "compute"


@dataclass(frozen=True)
class StageTime(Generic[Seconds]):
    """Where the program of a stage stands still in an iteration.

    Attributes
    ----------
    exposed_s : dict
        By communication that no computing hides (the index of its step): how long.
    bubble_s : float
        While other stages compute, or their programs are busy.
    """

    exposed_s: dict[int, Seconds]
    bubble_s: Seconds


@dataclass(frozen=True)
class Timeline(Generic[Seconds]):
    """An iteration in time.

    Attributes
    ----------
    spans : tuple of Span
        One per step.
    waits_s : tuple of float
        Per step, the exposed communication of all stages.
    total_s : float
        The iteration.
    stages : tuple of StageTime
    """

    spans: tuple[Span[Seconds], ...]
    waits_s: tuple[Seconds, ...]
    total_s: Seconds
    stages: tuple[StageTime[Seconds], ...] = ()

    @property
    def exposed_s(self) -> Floats:
        """Communication that no computing hides (s), of all stages."""
        return sum(self.waits_s)


class _Stage:
    """A stage in time.

    Parameters
    ----------
    hidden : float
        Part of a communication that computing can hide.
    """

    def __init__(self, hidden: float, levels: int, rate: float) -> None:
        self.clock = ProgramClock(rate)
        self.exposed_s: dict[int, Floats] = {}
        self.bubble_s: Floats = 0.0
        self._busy = 1.0 - hidden
        self._free: list[Floats] = [0.0] * levels  # when the links are free, on the network's clock
        self._ends: dict[int, Floats] = {}

    def start(self, i: int, item: Item) -> tuple[Floats, Floats]:
        """Start communication `i`; returns when it begins and ends on the program's clock, at its
        full rate.
        """
        clock, cost = self.clock, item.seconds
        ahead = clock.program_s - clock.network_s
        free = self._free_s(item.level)
        begin = later(clock.network_s, free)
        end = begin + cost if item.end_s is None else item.end_s(begin + ahead) - ahead
        clock.mark((i, "begin"), begin)
        clock.mark((i, "end"), end)
        # what does not happen in a case occupies nothing, and is waited for by nobody
        happens = isinstance(cost, float) and cost > 0
        self._ends[i] = end if happens else np.where(np.greater(cost, 0), end, 0.0)
        self._occupy(item.level, self._ends[i] - item.latency_s)
        if self._busy > 0.0:
            share = 1.0 if item.stage in item.receivers else 0.5
            self._expose(i, share * self._busy * cost)
        if item.stage not in item.receivers:  # under way
            begin = end - cost
        return begin + ahead, end + ahead

    def _free_s(self, level: Ints) -> Floats:
        if isinstance(level, int):  # the same in all cases
            return self._free[level]
        return np.choose(level, [np.asarray(free) for free in self._free])

    def _occupy(self, level: Ints, until: Floats) -> None:
        if isinstance(level, int):
            self._free[level] = later(self._free[level], until)
            return
        for here, free in enumerate(self._free):
            self._free[here] = np.where(np.equal(level, here), np.maximum(free, until), free)

    def _expose(self, i: int, seconds: Floats) -> None:
        """The program is busy with communication `i`."""
        self.clock.drive(seconds)
        self.exposed_s[i] = self.exposed_s.get(i, 0.0) + seconds

    def finish(self, i: int, where: Flags) -> None:
        """Wait for a communication that this stage started, in some cases."""
        end_s = self._ends[i] if where is True else np.where(where, self._ends[i], 0.0)
        self.exposed_s[i] = self.exposed_s.get(i, 0.0) + self.clock.reach(end_s)

    def receive(self, i: int, item: Item, begin_s: Floats, end_s: Floats) -> None:
        """Wait for a communication from another stage: until it is under way, that is the bubble.
        What is told to all stages is waited for, but is the sender's.
        """
        if len(item.receivers) > 1:
            self.idle(later(end_s - self.clock.program_s, 0.0))
            return
        busy_s = self._busy * item.seconds / 2
        still_s = later(end_s - busy_s - self.clock.program_s, 0.0)
        coming_s = np.minimum(still_s, later(end_s - begin_s - 2 * busy_s, 0.0))
        self.idle(still_s - coming_s)
        self._expose(i, coming_s + busy_s)

    def idle(self, seconds: Floats) -> None:
        """Stand still for other stages."""
        self.clock.drive(seconds)
        self.bubble_s = self.bubble_s + seconds


class _Wait(NamedTuple):
    """Communication `i` is needed by step `by`, in some cases."""

    by: int
    i: int
    where: Flags


def _waits(items: Sequence[Item], stages: int) -> list[dict[int, list[_Wait]]]:
    """By stage: step of its own (or the end) -> the communications that it waits for there."""
    own: list[list[int]] = [[] for _ in range(stages)]
    needed: list[_Wait] = []
    for i, item in enumerate(items):
        own[item.stage].append(i)
        if isinstance(item.needed_by, np.ndarray):
            needed += [_Wait(by, i, item.needed_by == by) for by in np.unique(item.needed_by)]
        elif item.needed_by is not None:
            needed.append(_Wait(item.needed_by, i, True))
    out: list[dict[int, list[_Wait]]] = [defaultdict(list) for _ in range(stages)]
    for wait in sorted(needed, key=lambda wait: wait[:2]):
        for stage in items[wait.i].receivers:
            following = bisect.bisect_left(own[stage], wait.by)
            at = own[stage][following] if following < len(own[stage]) else len(items)
            out[stage][at].append(wait)
    return out


def timeline(items: Sequence[Item], hidden: float = 1.0, levels: int = 1,
             rate: float = 1.0) -> Timeline[Floats]:
    """Lay the steps out in time.

    Parameters
    ----------
    items : sequence of Item
        In the order of the list that is executed.
    hidden : float
        Part of a communication that computing can hide; the program is busy with the rest.
    levels : int
        Levels of the machine.
    rate : float
        Progress rate of that part while the program computes, relative to while it waits (above 0,
        to 1). Between stages a communication keeps its full rate.
    """
    count = 1 + max((item.stage for item in items), default=0)
    stages = [_Stage(hidden, levels, rate) for _ in range(count)]
    waits = _waits(items, count)
    sent_s: dict[int, tuple[Floats, Floats]] = {}  # communications: begin and end
    begins: list[Floats] = []

    def wait(number: int, at: int) -> None:
        for _, i, where in waits[number].pop(at, ()):
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
