"""The timeline of an iteration: a stream of computing, and beside it one of communication for each
level of the machine.

The program walks the steps in order. A compute step occupies the program until it ends. A
communication step starts when the program reaches it and its level's links are free, and runs
beside what follows. A step waits for every communication that is needed by it; the end of the
iteration waits for all. Where the program itself has to drive the messages, only a part of a
communication runs beside it; and where it looks after them now and then, that part goes on more
slowly while it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcpar.cost.timeline.lateness import Late, Lateness


@dataclass(frozen=True)
class Item:
    """A step in time; numbers may be arrays with an entry for each case of a family.

    Attributes
    ----------
    needed_by : int or None
        Of a communication: index of the first step that needs it (the number of steps: the end).
        None for computing.
    level : int
        Of a communication: the level of the machine that it crosses.
    partners : float
        Of a communication: the part of the other ranks that a rank waits for.
    """

    seconds: Any
    needed_by: int | None = None
    level: Any = 0
    partners: Any = 1.0


@dataclass(frozen=True)
class Span:
    """When a step ran (s from the start of the iteration), and on which stream: ``compute`` or a
    level of the machine.
    """

    start_s: Any
    end_s: Any
    stream: str = "compute"


@dataclass(frozen=True)
class Block:
    """What a stage of a pipeline does as a whole: a micro-batch forward or backward, or the
    gradients and updates at the end.
    """

    stage: int
    phase: str
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """An iteration in time.

    Attributes
    ----------
    spans : tuple of Span
        One per step.
    waits_s : tuple of float
        Per step, the time that the program stood still for it (communication steps only): the
        exposed communication.
    total_s : float
        The iteration.
    blocks : tuple of Block
        Of a pipeline, whose spans show the first micro-batch only.
    """

    spans: tuple[Span, ...]
    waits_s: tuple[Any, ...]
    total_s: Any
    blocks: tuple[Block, ...] = ()

    @property
    def exposed_s(self) -> Any:
        """Communication that no computing hides (s)."""
        return sum(self.waits_s)


class _Clock:
    """The program's time, and the network's: how far communication has come, which while the
    program computes goes at a rate of its own.

    Attributes
    ----------
    program_s, network_s : float
        Equal where that rate is 1.
    marks_s : dict
        Times of the network that were asked for, on the program's clock.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.program_s: Any = 0.0
        self.network_s: Any = 0.0
        self.marks_s: dict[Any, Any] = {}
        self._open: dict[Any, Any] = {}

    def mark(self, key: Any, at_s: Any) -> None:
        """Ask when the network's clock shows a time, now or later."""
        self.marks_s[key] = at_s
        if self.rate < 1.0:
            self._open[key] = at_s
            self.marks_s[key] = np.where(np.less_equal(at_s, self.network_s), self.program_s,
                                         np.inf)

    def compute(self, seconds: Any) -> None:
        """The program computes."""
        self._advance(seconds, self.rate)

    def drive(self, seconds: Any) -> None:
        """The program is busy with messages."""
        self._advance(seconds, 1.0)

    def reach(self, at_s: Any) -> Any:
        """The program waits until the network's clock shows a time; returns how long (0 where that
        is past).
        """
        late = np.maximum(at_s - self.network_s, 0.0)
        if self.rate == 1.0:
            self.program_s = self.network_s = np.where(late > 0, at_s, self.network_s)
        else:
            self._advance(late, 1.0)
        return late

    def _advance(self, seconds: Any, rate: float) -> None:
        before_s, self.program_s = self.program_s, self.program_s + seconds
        if self.rate == 1.0:
            self.network_s = self.program_s
            return
        from_s, self.network_s = self.network_s, self.network_s + rate * seconds
        for key, at_s in list(self._open.items()):
            past = np.less_equal(at_s, self.network_s)
            self.marks_s[key] = np.where(past & np.isinf(self.marks_s[key]),
                                         before_s + (at_s - from_s) / rate, self.marks_s[key])
            if np.all(past):
                del self._open[key]


def timeline(
    items: Sequence[Item], hidden: float = 1.0, levels: int = 1, rate: float = 1.0, late_s: Late | None = None
) -> Timeline:
    """Lay the steps out in time.

    Parameters
    ----------
    hidden : float
        Part of a communication that computing can hide; the program is busy with the rest.
    levels : int
        Levels of the machine.
    rate : float
        How fast that part goes on while the program computes, of how fast it does while the program
        waits (above 0, to 1).
    late_s : callable, optional
        Where ranks take turns on cores, how late they are after computing.
    """
    waiting: dict[int, list[int]] = {}
    for i, item in enumerate(items):
        if item.needed_by is not None:
            waiting.setdefault(item.needed_by, []).append(i)
    clock = _Clock(rate)
    begins: list[Any] = []
    ends: dict[int, Any] = {}  # of communications, on the network's clock
    waits: list[Any] = [0.0] * len(items)
    network: list[Any] = [0.0] * levels  # when its levels are free, on its clock

    late = None if late_s is None else Lateness(late_s)

    def wait(at: int) -> None:
        for index in waiting.pop(at, ()):
            # what does not happen in a case is waited for by nobody
            happens = np.greater(items[index].seconds, 0)
            end = np.where(happens, ends[index], 0.0)
            if late is not None:
                longer = late.wait(happens, items[index].partners)
                # what is under way stands still until the last is there
                end = np.where(np.greater(end, clock.network_s), end + longer, end)
                waits[index] = waits[index] + longer
                clock.drive(longer)
            waits[index] = waits[index] + clock.reach(end)

    for i, item in enumerate(items):
        wait(i)
        cost = item.seconds
        begins.append(clock.program_s)
        if item.needed_by is None:
            clock.compute(cost)
            if late is not None:
                late.compute(cost)
            continue
        begin = np.maximum(clock.network_s, network[0] if levels == 1
                           else np.choose(item.level, network))
        ends[i] = begin + cost
        clock.mark((i, "begin"), begin)
        clock.mark((i, "end"), ends[i])
        if hidden < 1.0:
            busy = (1.0 - hidden) * cost
            waits[i] = waits[i] + busy
            clock.drive(busy)
        happens = np.greater(cost, 0)
        for level in range(levels):
            here = happens if levels == 1 else happens & np.equal(item.level, level)
            network[level] = np.where(here, ends[i], network[level])
    for at in sorted(waiting):
        wait(at)
    marks = clock.marks_s
    spans = (
        Span(begin, begin + item.seconds) if item.needed_by is None else Span(marks[i, "begin"], marks[i, "end"], "network")
        for i, (item, begin) in enumerate(zip(items, begins, strict=True))
    )
    return Timeline(tuple(spans), tuple(waits), clock.program_s)
