"""Numbers that change with every iteration. Kernels read them from device memory, so that the same
launches, captured once, compute with new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from hpcpar.errors import RunError
from hpcpar.kernels.interface import Array, Backend, address


class NotReplayable(RunError):
    """Code that runs once, in a capture, reads a number that changes later."""


class Number(float):
    """A number, and its address in device memory; 0 where it has none."""

    at: int = 0


class Key(int):
    """A 64-bit key, and its address in device memory; 0 where it has none."""

    at: int = 0


def argument(number: float) -> tuple[float, np.uint64]:
    """A number as two arguments of a kernel, of which one counts: value and address."""
    at = np.uint64(getattr(number, "at", 0))
    return 0.0 if at else float(number), at


def key_argument(key: int) -> tuple[np.uint64, np.uint64]:
    """The same for a key."""
    at = np.uint64(getattr(key, "at", 0))
    return np.uint64(0 if at else key), at


class Numbers:
    """The numbers of one executor's iterations.

    A number is known by a name. Its first user gets the value alone; before the next iteration, the
    device gets all numbers that are known by then.

    Attributes
    ----------
    words : array
        Device memory of the numbers, 64 bits each; none on a CPU.
    iteration : int
        Number of the iteration.
    recording : bool
        True while an iteration is captured.
    """

    def __init__(self, backend: Backend, capacity: int) -> None:
        self.words: Array = backend.zeros((capacity if backend.works_later else 0,), np.int64)
        self.iteration, self.recording = 0, False
        self._known: dict[Hashable, tuple[int, Callable[[], float]]] = {}
        self._sent = 0

    def write(self, host: Any) -> None:
        """Write this iteration's numbers into host memory with the size of `words`."""
        for at, value in self._known.values():
            number = value()
            host.view(np.uint64 if isinstance(number, int) else np.float64)[at] = number
        self._sent = len(self._known)

    def forget(self) -> None:
        """End the iteration: until the next one, the device's numbers are old."""
        self._sent = 0

    def number(self, name: Hashable, value: Callable[[], float]) -> float:
        """This iteration's number; `value` computes it."""
        made = Number(value())
        made.at = self._address(name, lambda: float(value()))
        return made

    def key(self, name: Hashable, value: Callable[[], int]) -> int:
        """This iteration's key, below 2**64; `value` computes it."""
        made = Key(value())
        made.at = self._address(name, value)
        return made

    def _address(self, name: Hashable, value: Callable[[], float]) -> int:
        if name not in self._known and len(self._known) < len(self.words):
            self._known[name] = len(self._known), value
        at = self._known[name][0] if name in self._known else self._sent
        if at < self._sent:
            return address(self.words) + 8 * at
        self.require_value("a number")
        return 0

    def require_value(self, what: str) -> None:
        """Refuse to use a value in a capture.

        Raises
        ------
        NotReplayable
            An iteration is captured.
        """
        if self.recording:
            raise NotReplayable(f"a captured iteration cannot use the value of {what}")
