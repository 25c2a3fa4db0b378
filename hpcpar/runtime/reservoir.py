"""Values of iterations in bounded memory: all of a short run, some of a long one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
#: Iterations that are kept follow each other in groups of so many, for timelines.
TOGETHER = 4
#: Step times of all ranks together that a record holds at most, in each of its arrays (16 MB for
#: the four).
KEPT_TIMES = 1 << 20
#: The fewest iterations whose step times are kept, and the most of which anything is kept.
FEWEST, MOST_ITERATIONS = 16, 1 << 16


def most_kept(steps: int, ranks: int) -> int:
    """The number of iterations of which the times of all steps on all ranks are kept at most."""
    return min(MOST_ITERATIONS, max(FEWEST, KEPT_TIMES // max(1, steps * ranks)))


def stride(numbers: Sequence[int], most: int) -> int:
    """The smallest power of two so that at most `most` of the numbers are in every so-many-th
    group.
    """
    found = 1
    while sum(n // TOGETHER % found == 0 for n in numbers) > most:
        found *= 2
    return found


class Reservoir(Generic[T]):
    """Values spread evenly over a run of any length: of every group of iterations, then of every
    second, every fourth, and so on.

    Which iterations are kept depends on their numbers alone, so it is the same on every rank. Of
    two reservoirs, the smaller one keeps some of the larger one's iterations.

    Parameters
    ----------
    most : int
        Largest number of values.

    Attributes
    ----------
    numbers : list of int
        Numbers of the iterations that are kept, ascending.
    values : list
        Their values.
    """

    def __init__(self, most: int) -> None:
        self._most, self._stride = most, 1
        self.numbers: list[int] = []
        self.values: list[T] = []

    def takes(self, number: int) -> bool:
        """True where it is this iteration's turn."""
        return number // TOGETHER % self._stride == 0

    def add(self, number: int, value: T) -> None:
        """Keeps the value of an iteration, where it is its turn."""
        if not self.takes(number):
            return
        self.numbers.append(number)
        self.values.append(value)
        if len(self.numbers) > self._most:
            self._stride = stride(self.numbers, self._most)
            chosen = [i for i, n in enumerate(self.numbers) if self.takes(n)]
            self.numbers = [self.numbers[i] for i in chosen]
            self.values = [self.values[i] for i in chosen]
