"""The timeline of an iteration: a stream of computing, and beside it one of communication for each level of the machine.

The program walks the steps in order. A compute step occupies the program until it ends. A communication step starts when
the program reaches it and its level's links are free, and runs beside what follows. A step waits for every communication
that is needed by it; the end of the iteration waits for all. Where the program itself has to drive the messages, only a part of a
communication runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Item:
    """A step in time; numbers may be arrays with an entry for each case of a family.

    Attributes
    ----------
    needed_by : int or None
        Of a communication: index of the first step that needs it (the number of steps: the end). None for computing.
    level : int
        Of a communication: the level of the machine that it crosses.
    """

    seconds: Any
    needed_by: int | None = None
    level: Any = 0


@dataclass(frozen=True)
class Span:
    """When a step ran (s from the start of the iteration), and on which stream: ``compute`` or a level of the machine."""

    start_s: Any
    end_s: Any
    stream: str = "compute"


@dataclass(frozen=True)
class Block:
    """What a stage of a pipeline does as a whole: a micro-batch forward or backward, or the gradients and updates at the end."""

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
        Per step, the time that the program stood still for it (communication steps only): the exposed communication.
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


def timeline(items: Sequence[Item], hidden: float = 1.0, levels: int = 1) -> Timeline:
    """Lay the steps out in time.

    Parameters
    ----------
    hidden : float
        Part of a communication that computing can hide; the program is busy with the rest.
    levels : int
        Levels of the machine.
    """
    waiting: dict[int, list[int]] = {}
    for i, item in enumerate(items):
        if item.needed_by is not None:
            waiting.setdefault(item.needed_by, []).append(i)
    spans: list[Span] = []
    waits: list[Any] = [0.0] * len(items)
    now: Any = 0.0
    network: list[Any] = [0.0] * levels

    def wait(at: int) -> None:
        nonlocal now
        for index in waiting.pop(at, ()):
            # what does not happen in a case is waited for by nobody
            late = np.where(np.greater(items[index].seconds, 0), np.maximum(spans[index].end_s - now, 0.0), 0.0)
            waits[index] = waits[index] + late
            now = np.where(late > 0, np.maximum(now, spans[index].end_s), now)

    for i, item in enumerate(items):
        wait(i)
        cost = item.seconds
        if item.needed_by is None:
            spans.append(Span(now, now + cost))
            now = now + cost
            continue
        free = network[0] if levels == 1 else np.choose(item.level, network)
        begin = np.maximum(now, free)
        if hidden < 1.0:
            busy = (1.0 - hidden) * cost
            waits[i] = waits[i] + busy
            now = now + busy
        end = begin + cost
        spans.append(Span(begin, end, "network"))
        happens = np.greater(cost, 0)
        for level in range(levels):
            here = happens if levels == 1 else happens & np.equal(item.level, level)
            network[level] = np.where(here, end, network[level])
    for at in sorted(waiting):
        wait(at)
    return Timeline(tuple(spans), tuple(waits), now)
