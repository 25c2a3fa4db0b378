"""Values of iterations in bounded memory: all iterations of a short run, some of a long one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
#: Iterations are kept in groups of this many consecutive ones, for timelines.
GROUP = 4
#: The most step times, over all ranks, in each array of a record (16 MB for its four arrays).
KEPT_TIMES = 1 << 20
#: The same for a record that is written with a checkpoint, and therefore often.
KEPT_TIMES_MEANWHILE = 1 << 16
#: A record always has room for the step times of `MIN_ITERATIONS` iterations, and never keeps more
#: than `MAX_ITERATIONS`.
MIN_ITERATIONS, MAX_ITERATIONS = 16, 1 << 16


def max_kept(steps: int, ranks: int, times: int = KEPT_TIMES) -> int:
    """The largest number of iterations whose step times, on all ranks, are kept."""
    return min(MAX_ITERATIONS, max(MIN_ITERATIONS, times // max(1, steps * ranks)))


def stride(numbers: Sequence[int], limit: int) -> int:
    """The smallest power of two s for which every s-th group makes at most `limit` numbers."""
    out = 1
    while sum(n // GROUP % out == 0 for n in numbers) > limit:
        out *= 2
    return out


class Reservoir(Generic[T]):
    """Values spread evenly over a run of any length. It keeps every group of iterations, then every
    second group, every fourth, and so on.

    The choice depends on the iterations' numbers alone, so it is the same on every rank, and a
    smaller reservoir keeps a subset of a larger one's iterations.

    Parameters
    ----------
    limit : int
        Largest number of values.

    Attributes
    ----------
    numbers : list of int
        Numbers of the kept iterations, ascending.
    values : list
        Their values.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._stride = limit, 1
        self.numbers: list[int] = []
        self.values: list[T] = []

    def takes(self, number: int) -> bool:
        """True where the reservoir keeps an iteration with this number."""
        return number // GROUP % self._stride == 0

    def add(self, number: int, value: T) -> None:
        """Keep the value of an iteration, if the reservoir takes it."""
        if not self.takes(number):
            return
        self.numbers.append(number)
        self.values.append(value)
        if len(self.numbers) > self._limit:
            thinned = self.thinned(self._limit)
            self._stride, self.numbers, self.values = (
                thinned._stride, thinned.numbers, thinned.values)

    def thinned(self, limit: int) -> Reservoir[T]:
        """A reservoir with at most `limit` of these values."""
        out: Reservoir[T] = Reservoir(limit)
        out._stride = stride(self.numbers, limit)
        chosen = [i for i, n in enumerate(self.numbers) if out.takes(n)]
        out.numbers = [self.numbers[i] for i in chosen]
        out.values = [self.values[i] for i in chosen]
        return out
