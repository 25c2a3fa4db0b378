"""Capture of streams into graphs, with the refusals of CUDA and of CuPy.

As in CuPy, copies between host and device and calls of cuBLAS are refused on a capturing stream.
One refusal is stricter: memory of the shared pool, because a replay would write to it after others
got it.
"""

from __future__ import annotations

from typing import Any

from . import memory, runtime, streams


class Capture:
    """The work of streams that take part in one capture.

    Attributes
    ----------
    nodes : list
        (stream, kind, what) in the order of submission: ``work`` with a function, ``record`` and
        ``wait`` with a point.
    """

    def __init__(self, origin: streams.Stream, mode: int) -> None:
        self.origin, self.mode, self.broken = origin, mode, False
        self.nodes: list[tuple[streams.Stream, str, Any]] = []
        #: By stream, how much of each stream's work comes before its next work.
        self.seen: dict[streams.Stream, dict[streams.Stream, int]] = {}
        self.join(origin)

    def join(self, stream: streams.Stream) -> None:
        self.seen.setdefault(stream, {stream: 0})
        stream.capture = self

    def add(self, stream: streams.Stream, kind: str, what: Any) -> None:
        self.nodes.append((stream, kind, what))
        if kind == "work":
            self.seen[stream][stream] += 1

    def end(self) -> None:
        for stream in self.seen:
            stream.capture = None

    @property
    def unjoined(self) -> bool:
        """True if a stream has work that the first stream does not wait for."""
        last = self.seen[self.origin]
        return any(last.get(stream, 0) < seen[stream] for stream, seen in self.seen.items())


class CapturedPoint:
    """The record of an event in a capture."""

    def __init__(self, stream: streams.Stream, capture: Capture) -> None:
        self.capture, self.seen = capture, dict(capture.seen[stream])
        capture.add(stream, "record", self)

    def wait(self, stream: streams.Stream) -> None:
        """Make a stream wait; it then takes part in the capture."""
        if self.capture.origin.capture is not self.capture:
            raise runtime.error("cudaErrorCapturedEvent", "an event of a capture that has ended")
        if stream.capture is not None and stream.capture is not self.capture:
            raise runtime.error("cudaErrorStreamCaptureMerge", "an event of another capture")
        self.capture.join(stream)
        known = self.capture.seen[stream]
        for other, count in self.seen.items():
            known[other] = max(known.get(other, 0), count)
        self.capture.add(stream, "wait", self)


class Graph:
    """Captured work."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._branches = {stream: streams.Stream() for stream in capture.seen
                          if stream is not capture.origin}

    def upload(self, stream: streams.Stream | None = None) -> None:
        """Nothing to do before a launch."""

    def launch(self, stream: streams.Stream | None = None) -> None:
        """Submit the work: the first stream's to this stream, each other one's to its own."""
        main = streams.current_stream() if stream is None else stream
        main.require_no_capture("a launch of a graph")
        points: dict[CapturedPoint, streams.Point] = {}
        for captured, kind, what in self._capture.nodes:
            on = self._branches.get(captured, main)
            if kind == "work":
                on.submit(what)
            elif kind == "record":
                points[what] = streams.Point(on)
            else:
                on.submit(points[what].reach)


def refuse_host_copy() -> None:
    """Refuse a copy between host and device on a capturing stream."""
    if streams.current_stream().capture is not None:
        raise RuntimeError("the current stream is capturing, so synchronous API calls are "
                           "disallowed")


def refuse_cublas() -> None:
    """Refuse a call of cuBLAS on a capturing stream."""
    if streams.current_stream().capture is not None:
        raise NotImplementedError("calling cuBLAS API during stream capture is currently "
                                  "unsupported")


def allocate(array: Any) -> None:
    """Give an array memory of the current pool."""
    capture = streams.current_stream().capture
    pool = memory.current_pool()
    if pool is not None:
        if capture is not None and capture.mode != runtime.streamCaptureModeRelaxed:
            raise runtime.error("cudaErrorStreamCaptureUnsupported", "cudaMalloc")
        pool.keep(array)
    elif capture is not None:
        raise RuntimeError("memory of the shared pool in a capture: a replay would write to it "
                           "after it was given to others")
