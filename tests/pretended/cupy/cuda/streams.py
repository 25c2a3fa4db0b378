"""Streams and events. Work waits in its stream until somebody needs it, or the host polls.

Work that itself waits for other ranks returns False, and is asked again later: a host that polls
never stands still for its device.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import runtime


class Stream:
    """A queue of work."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._work: deque[Callable[[], Any]] = deque()
        self.ptr = len(_streams)
        _streams.append(self)

    def use(self) -> Stream:
        _thread.current = self
        return self

    def __enter__(self) -> Stream:
        _entered().append(self)
        return self.use()

    def __exit__(self, *error: object) -> None:
        """As in CuPy, back to the stream entered before, not to one in use before."""
        _entered().pop()
        _entered()[-1].use()

    def submit(self, work: Callable[[], Any]) -> None:
        self._work.append(work)

    def wait_event(self, event: Event) -> None:
        """Wait for the event's last record so far: later records of it do not matter."""
        self.submit(event.point.reach)

    def advance(self, until: Point | None = None) -> bool:
        """Do the work up to an event, or all; False where it waits for other ranks."""
        with _device:
            while self._work and not (until is not None and until.reached):
                if self._work[0]() is False:
                    return False
                self._work.popleft()
        return True

    def flush(self, until: Point | None = None) -> None:
        """Return when the work up to an event, or all, is done."""
        while not self.advance(until):
            advance_all()
            os.sched_yield()

    def synchronize(self) -> None:
        runtime.host_waits += 1
        self.flush()


class Point:
    """A record of an event in a stream; without a stream, of an event that was never recorded."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.reached, self.time_s, self.polled = stream is None, 0.0, False
        self.stream = stream
        if stream is not None:
            stream.submit(self._arrive)

    def _arrive(self) -> None:
        self.reached, self.time_s = True, time.perf_counter()

    def reach(self) -> bool:
        """Do the work before the point; False where that waits for other ranks."""
        return self.stream is None or self.stream.advance(self)


class Event:
    """A point in a stream, the one of the last record."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.point = Point()

    def record(self, stream: Stream | None = None) -> None:
        self.point = Point(current_stream() if stream is None else stream)

    @property
    def done(self) -> bool:
        """False when asked for the first time; then the device does the work before the event, or,
        where that waits for other ranks, all that it can do.
        """
        runtime.host_waits += 1
        if not self.point.reached and self.point.polled and not self.point.reach():
            advance_all()
        self.point.polled = True
        return self.point.reached

    def synchronize(self) -> None:
        runtime.host_waits += 1
        if self.point.stream is not None:
            self.point.stream.flush(self.point)


def advance_all() -> bool:
    """Do the work of all streams; False where some waits for other ranks."""
    done = [stream.advance() for stream in _streams]
    return all(done)


def stream_of(ptr: int) -> Stream:
    return _streams[ptr]


def current_stream() -> Stream:
    return getattr(_thread, "current", Stream.null)


def _entered() -> list[Stream]:
    """The streams that this thread has entered and not left."""
    if not hasattr(_thread, "entered"):
        _thread.entered = [Stream.null]
    entered: list[Stream] = _thread.entered
    return entered


def get_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two events that were reached."""
    assert start.point.reached and end.point.reached
    return 1e3 * (end.point.time_s - start.point.time_s)


_streams: list[Stream] = []
#: One thread at a time does work.
_device = threading.RLock()
Stream.null = Stream()
#: Every thread has a current stream of its own.
_thread = threading.local()
