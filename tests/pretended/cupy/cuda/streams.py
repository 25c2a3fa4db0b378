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
from typing import TYPE_CHECKING, Any

from . import runtime

if TYPE_CHECKING:
    from .capture import Capture, CapturedPoint, Graph


class Stream:
    """A queue of work."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._work: deque[Callable[[], Any]] = deque()
        self.capture: Capture | None = None
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
        if self.capture is not None:
            self.capture.add(self, "work", work)
        else:
            self._work.append(work)

    def wait_event(self, event: Event) -> None:
        """Wait for the event's last record so far: later records of it do not matter."""
        point = event.point
        if not isinstance(point, Point):
            point.wait(self)
        elif self.capture is None:
            self.submit(point.reach)
        elif point.stream is not None:
            self.capture.broken = True
            raise runtime.error("cudaErrorStreamCaptureIsolation", "an event of uncaptured work")

    def begin_capture(self, mode: int | None = None) -> None:
        """Begin to collect this stream's work in a graph; nothing of it runs."""
        from .capture import Capture

        if self is Stream.null:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self.capture is not None:
            raise runtime.error("cudaErrorIllegalState", "the stream is capturing")
        Capture(self, runtime.streamCaptureModeRelaxed if mode is None else mode)

    def end_capture(self) -> Graph:
        """The captured work of this stream and of those that joined it."""
        from .capture import Graph

        capture = self.capture
        if capture is None:
            raise runtime.error("cudaErrorIllegalState", "the stream is not capturing")
        if capture.origin is not self:
            capture.broken = True
            raise runtime.error("cudaErrorStreamCaptureUnmatched", "another stream's capture")
        capture.end()
        if capture.broken:
            raise runtime.error("cudaErrorStreamCaptureInvalidated", "an earlier error")
        if capture.unjoined:
            raise runtime.error("cudaErrorStreamCaptureUnjoined", "work that nobody waits for")
        return Graph(capture)

    def is_capturing(self) -> bool:
        return self.capture is not None

    def launch_host_func(self, callback: Callable[[Any], None], arg: Any) -> None:
        """Call a function of the host. In a capture, CuPy's replays hang or crash (issue 9274)."""
        self.require_no_capture("a call of the host")
        self.submit(lambda: callback(arg))

    def require_no_capture(self, what: str) -> None:
        """Refuse what breaks a capture."""
        if self.capture is not None:
            self.capture.broken = True
            raise runtime.error("cudaErrorStreamCaptureUnsupported", what)

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
        self.require_no_capture("a wait for a stream")
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
        self.point: Point | CapturedPoint = Point()

    def record(self, stream: Stream | None = None) -> None:
        from .capture import CapturedPoint

        on = current_stream() if stream is None else stream
        self.point = Point(on) if on.capture is None else CapturedPoint(on, on.capture)

    @property
    def done(self) -> bool:
        """False when asked for the first time; then the device does the work before the event, or,
        where that waits for other ranks, all that it can do.
        """
        point = self._executed()
        runtime.host_waits += 1
        if not point.reached and point.polled and not point.reach():
            advance_all()
        point.polled = True
        return point.reached

    def synchronize(self) -> None:
        point = self._executed()
        runtime.host_waits += 1
        if point.stream is not None:
            point.stream.flush(point)

    def _executed(self) -> Point:
        """The point, which must not be in a capture."""
        if isinstance(self.point, Point):
            return self.point
        self.point.capture.broken = True
        raise runtime.error("cudaErrorCapturedEvent", "an event that was recorded in a capture")


def advance_all() -> bool:
    """Do the work of all streams; False where some waits for other ranks."""
    done = [stream.advance() for stream in _streams]
    return all(done)


def require_no_capture(what: str) -> None:
    """Refuse what breaks every capture of this thread."""
    for stream in _streams:
        stream.require_no_capture(what)


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
    first, last = start._executed(), end._executed()
    assert first.reached and last.reached
    return 1e3 * (last.time_s - first.time_s)


_streams: list[Stream] = []
#: One thread at a time does work.
_device = threading.RLock()
Stream.null = Stream()
#: Every thread has a current stream of its own.
_thread = threading.local()
