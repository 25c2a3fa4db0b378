"""The moment at which most is alive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from hpcpar.schedule.memory_plan.views import Life

K = TypeVar("K")
#: A program's number, and one of its steps.
Moment = tuple[int, int]


@dataclass(frozen=True)
class Peak(Generic[K]):
    """The first moment at which most is alive.

    Attributes
    ----------
    amount : int
        Sum of the sizes of what is alive.
    alive : tuple
        What that is.
    """

    amount: int
    alive: tuple[K, ...]


def peak(things: Iterable[tuple[K, int, Iterable[Life]]]) -> Peak[K]:
    """The peak of things with their sizes and lives."""
    lives = [(thing, size, life) for thing, size, each in things if size for life in _apart(each)]
    changes: dict[Moment, int] = defaultdict(int)
    for _, size, life in lives:
        changes[life.program, life.first] += size
        changes[life.program, life.last + 1] -= size
    now = most = 0
    at: Moment = (0, 0)
    for moment in sorted(changes):
        now += changes[moment]
        if now > most:
            most, at = now, moment
    program, step = at
    alive = {thing: None for thing, _, life in lives
             if life.program == program and life.first <= step <= life.last}
    return Peak(most, tuple(alive))


def _apart(lives: Iterable[Life]) -> list[Life]:
    """The same moments as lives that do not overlap: a buffer of several micro-batches may live
    for the next before the last has gone.
    """
    out: list[Life] = []
    for life in sorted(lives, key=lambda each: (each.program, each.first)):
        if out and out[-1].program == life.program and life.first <= out[-1].last:
            out[-1] = replace(out[-1], last=max(out[-1].last, life.last))
        else:
            out.append(life)
    return out
