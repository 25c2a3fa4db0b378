"""The streams and events of a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.streams import Mark, Streams


class CupyStreams(Streams):
    """The streams of the current GPU."""

    works_later = True

    def __init__(self) -> None:
        use_compute_stream()
        self._compute, self._device = cp.cuda.get_current_stream(), cp.cuda.Device()
        self._communication = cp.cuda.Stream(non_blocking=True)
        #: Always without work, so that an event on it shows the present.
        self._idle = cp.cuda.Stream(non_blocking=True)

    @contextmanager
    def compute_stream(self) -> Iterator[None]:
        with self._device, self._compute:
            yield

    def communication_stream(self) -> AbstractContextManager[Any]:
        return self._communication

    def mark(self, old: Mark = None) -> Mark:
        event = cp.cuda.Event() if old is None else old
        event.record()
        return event

    def follow(self, mark: Mark) -> None:
        cp.cuda.get_current_stream().wait_event(mark)

    def reached(self, mark: Mark) -> bool:
        return bool(mark.done)

    def times_s(self, marks: Sequence[Mark]) -> np.ndarray:
        if not marks[-1].done:
            marks[-1].synchronize()
        now = cp.cuda.Event()
        now.record(self._idle)
        now.synchronize()
        now_s = time.perf_counter()
        return np.array([now_s - cp.cuda.get_elapsed_time(mark, now) / 1e3 for mark in marks])

    def synchronize(self) -> None:
        cp.cuda.runtime.deviceSynchronize()


def use_compute_stream() -> None:
    """Replace the default stream, which waits for all others, by a new current stream.

    The stream is entered and never left: at the end of a ``with``, CuPy returns to the stream that
    was entered before, not to the stream in use.
    """
    if cp.cuda.get_current_stream() == cp.cuda.Stream.null:
        cp.cuda.Stream(non_blocking=True).__enter__()
