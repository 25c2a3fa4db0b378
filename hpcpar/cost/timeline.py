"""The two-stream timeline: computing, and the network beside it.

The program walks the steps in order. A compute step occupies the program until it ends. A communication step starts when
the program reaches it and the network is free, and runs beside what follows. A step waits for every communication
that is needed by it; the end of the iteration waits for all. Where the program itself has to drive the messages, only a part of a
communication runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.schedule.steps import Comm, Compute, Step


@dataclass(frozen=True)
class Span:
    """When a step ran (s from the start of the iteration), and how long the program waited for it beyond other work."""

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
        Per step, the time that the program stood still for it (communication steps only): the exposed communication.
    total_s : float
        The iteration.
    """

    spans: tuple[Span, ...]
    waits_s: tuple[float, ...]
    total_s: float

    @property
    def exposed_s(self) -> float:
        """Communication that no computing hides (s)."""
        return sum(self.waits_s)


def timeline(steps: Sequence[Step], seconds: Sequence[float], hidden: float = 1.0) -> Timeline:
    """Lay the steps out in time.

    Parameters
    ----------
    steps : sequence of Step
        In order; a communication step's `needed_by` is an index into it (or its length: the end).
    seconds : sequence of float
        Duration of each.
    hidden : float
        Part of a communication that computing can hide; the program is busy with the rest.
    """
    waiting: dict[int, list[int]] = {}
    for step in steps:
        if isinstance(step, Comm):
            waiting.setdefault(step.needed_by, []).append(step.index)
    spans: list[Span] = []
    waits = [0.0] * len(steps)
    now = network = 0.0

    def wait(at: int) -> None:
        nonlocal now
        for index in waiting.pop(at, ()):
            if spans[index].end_s > now:
                waits[index] += spans[index].end_s - now
                now = spans[index].end_s

    for i, (step, cost) in enumerate(zip(steps, seconds, strict=True)):
        wait(i)
        if isinstance(step, Compute):
            spans.append(Span(now, now + cost))
            now += cost
        else:
            begin = max(now, network)
            busy = (1.0 - hidden) * cost
            waits[i] += busy
            now += busy
            network = begin + cost
            spans.append(Span(begin, network))
    for at in sorted(waiting):
        wait(at)
    return Timeline(tuple(spans), tuple(waits), now)
