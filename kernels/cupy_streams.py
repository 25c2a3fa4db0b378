"""The streams and events of a GPU, and graphs of work on them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import cupy as cp
import numpy as np

from hpcpar.kernels.streams import Mark, Streams


class _Graph:
    """A capture, then its graph. Calls launch it.

    Attributes
    ----------
    after_messages : bool
        True where the work needs messages that were submitted before it.
    """

    def __init__(self) -> None:
        self.after_messages = False
        self.pool = cp.cuda.MemoryPool()
        self.graph: Any = None
        #: Memory that the launches use, beside the executor's.
        self.kept: Any = None


class CupyStreams(Streams):
    """The streams of the current GPU.

    An event belongs to the capture in which it was recorded. A graph begins after all work before
    it and ends before all work after it, so events of another capture need no wait.
    """

    works_later = True
    _capture: _Graph | None = None

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
        event.capture = self._capture if self._captures() else None
        return event

    def follow(self, mark: Mark) -> None:
        if mark.capture is self._capture and mark.capture is not None:
            cp.cuda.get_current_stream().wait_event(mark)
        elif mark.capture is None and self._captures():
            assert self._capture is not None
            self._capture.after_messages = True
        elif mark.capture is None:
            cp.cuda.get_current_stream().wait_event(mark)

    def _captures(self) -> bool:
        """Whether the current stream takes part in a capture."""
        return self._capture is not None and bool(cp.cuda.get_current_stream().is_capturing())

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        stream, capture, joined = cp.cuda.get_current_stream(), _Graph(), cp.cuda.Event()
        with self._capturing(capture), cp.cuda.using_allocator(capture.pool.malloc):
            stream.begin_capture()
            try:
                work()
                if self._communication.is_capturing():
                    joined.record(self._communication)
                    stream.wait_event(joined)
            except BaseException:
                with suppress(RuntimeError):  # the error may have broken the capture
                    stream.end_capture()
                raise
            capture.graph = stream.end_capture()
        capture.kept = self._workspaces()
        capture.graph.upload(stream)
        before = cp.cuda.Event()

        def launch() -> None:
            if capture.after_messages:
                before.record(self._communication)
                stream.wait_event(before)
            capture.graph.launch(stream)

        return launch

    @contextmanager
    def _capturing(self, capture: _Graph) -> Iterator[None]:
        """A capture's time. Nothing is collected in it, because that could free a device's memory.
        """
        gc.collect()
        gc.disable()
        self._capture = capture
        try:
            yield
        finally:
            self._capture = None
            gc.enable()

    def _workspaces(self) -> Any:
        """Memory that kernels use now and that others may replace."""
        return None

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
