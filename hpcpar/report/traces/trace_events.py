"""Trace events for https://ui.perfetto.dev or chrome://tracing, written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcpar.errors import InputError
from hpcpar.io.files import write_text

Event = dict[str, Any]


def ns(seconds: float) -> int:
    """Whole nanoseconds, so that rounding does not make neighbors overlap."""
    return round(1e9 * seconds)


def us(nanoseconds: int) -> float:
    """Microseconds, which viewers read."""
    return nanoseconds / 1000


def names(pid: int, process: str, labels: str, threads: Mapping[int, str]) -> Iterator[Event]:
    """The names of a process and its threads, which are sorted by number."""

    def meta(what: str, tid: int, **args: object) -> Event:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    yield meta("process_name", 0, name=process)
    yield meta("process_labels", 0, labels=labels)
    yield meta("process_sort_index", 0, sort_index=pid)
    for tid, name in threads.items():
        yield meta("thread_name", tid, name=name)
        yield meta("thread_sort_index", tid, sort_index=tid)


def span(name: str, category: str, pid: int, tid: int, start_ns: int, end_ns: int,
         **args: object) -> Event:
    """A complete event."""
    where = {"pid": pid, "tid": tid, "ts": us(start_ns), "dur": us(end_ns - start_ns)}
    return {"ph": "X", "name": name, "cat": category, **where, "args": args}


def arrow(name: str, category: str, pid: int, number: int, source: tuple[int, int],
          target: tuple[int, int]) -> Iterator[Event]:
    """An arrow from (thread, ns) to (thread, ns); each end binds to the slice open at that time."""
    fields = {"name": name, "cat": category, "pid": pid, "id": number}
    yield fields | {"ph": "s", "tid": source[0], "ts": us(source[1])}
    yield fields | {"ph": "f", "bp": "e", "tid": target[0], "ts": us(target[1])}


def in_order(spans: Sequence[Event]) -> list[Event]:
    """Sorts events by start; of those that start together, the outer one first."""
    return sorted(spans, key=lambda event: (event["ts"], event["tid"], -event["dur"]))


def write(events: Iterable[Event], path: str) -> None:
    """Writes a trace atomically.

    Raises
    ------
    InputError
        A time that is not finite, or the file cannot be written.
    """
    try:
        document = {"traceEvents": list(events), "displayTimeUnit": "ms"}
        text = json.dumps(document, allow_nan=False)
    except (ValueError, OverflowError) as err:
        raise InputError(f"cannot write timeline {path}: a time is not finite ({err}); "
                         "check the machine's rates") from err
    write_text(path, text, "timeline")
