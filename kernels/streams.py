"""The order of work on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

#: A point in the order of work: a time of `time.perf_counter` on a CPU, an event on a GPU.
Mark = Any


class Streams(ABC):
    """A compute stream and a communication stream.

    A GPU does the work of each stream in the order of submission, and a call may return before its
    work is done. `follow` makes one stream wait for the other. On a CPU every call returns when its
    work is done.
    """

    #: True where calls return before their work is done.
    works_later = False

    @abstractmethod
    def compute_stream(self) -> AbstractContextManager[Any]:
        """A context in which the compute stream is the current stream, for any thread."""

    @abstractmethod
    def communication_stream(self) -> AbstractContextManager[Any]:
        """A context in which the communication stream is the current stream."""

    @abstractmethod
    def mark(self, old: Mark = None) -> Mark:
        """A mark after all work that was submitted to the current stream. An `old` mark that nobody
        needs any more may be used for it.
        """

    @abstractmethod
    def follow(self, mark: Mark) -> None:
        """Make later work on the current stream wait for a mark of the other stream."""

    @abstractmethod
    def reached(self, mark: Mark) -> bool:
        """True if all work before a mark is done."""

    @abstractmethod
    def times_s(self, marks: Sequence[Mark]) -> np.ndarray:
        """Wait for all marks, the last one last; return their times on the clock of
        `time.perf_counter`. Work after the marks is not waited for.
        """

    @abstractmethod
    def hold(self, seconds: float) -> None:
        """Let a GPU's current stream do nothing for about this time, so that work queues up behind;
        nothing on a CPU.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all submitted kernels."""

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that does the device's part of some work at every call. This call does nothing
        of it.

        Raises
        ------
        RuntimeError
            The device cannot capture something of it.
        """
        raise NotImplementedError
