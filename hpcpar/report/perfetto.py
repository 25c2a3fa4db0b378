"""Predicted timelines as trace events, for https://ui.perfetto.dev or chrome://tracing: a process per prediction, a thread per stream."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hpcpar.errors import InputError

if TYPE_CHECKING:
    from hpcpar.cost.price import Prediction

#: The stream of the steps that compute; the others are levels of the machine.
COMPUTE = "compute"


def streams(prediction: Prediction) -> list[str]:
    """Streams of a timeline: computing, then the levels of the machine in order of first use; of a pipeline, its stages."""
    if prediction.timeline.blocks:
        return [stage_name(i) for i in range(1 + max(b.stage for b in prediction.timeline.blocks))]
    used = dict.fromkeys(span.stream for span in prediction.timeline.spans)
    return [COMPUTE, *(name for name in used if name != COMPUTE)]


def stage_name(stage: int) -> str:
    """The stream of a pipeline's stage."""
    return f"stage {stage}"


def title(prediction: Prediction) -> str:
    """Network, strategy and ranks."""
    return f"{prediction.network} {prediction.strategy}, {prediction.ranks} rank{'s' if prediction.ranks != 1 else ''}"


def gaps(prediction: Prediction) -> list[tuple[float, float]]:
    """When computing stands still, as (start, end) in s: what communication is exposed."""
    out: list[tuple[float, float]] = []
    now = 0.0
    work = [(s.start_s, s.end_s) for s in prediction.timeline.spans if s.stream == COMPUTE]
    for start, end in sorted([*work, (prediction.timeline.total_s,) * 2]):
        if start - now > 1e-9 * prediction.timeline.total_s:  # more than rounding
            out.append((now, start))
        now = max(now, end)
    return out


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


def _us(ns: int) -> float:
    """Viewers read microseconds; whole nanoseconds below keep neighbours from overlapping by rounding."""
    return ns / 1000


def _names(pid: int, prediction: Prediction, threads: Sequence[str]) -> Iterator[dict[str, Any]]:
    def meta(what: str, tid: int, **args: object) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}

    yield meta("process_name", 0, name=title(prediction))
    yield meta("process_labels", 0, labels=f"on {prediction.machine}")
    yield meta("process_sort_index", 0, sort_index=pid)
    for tid, stream in enumerate(threads):
        yield meta("thread_name", tid, name=stream)
        yield meta("thread_sort_index", tid, sort_index=tid)


def _steps(pid: int, prediction: Prediction, threads: Sequence[str]) -> Iterator[dict[str, Any]]:
    tids = {stream: tid for tid, stream in enumerate(threads)}
    for b in prediction.timeline.blocks:
        start, end = _ns(b.start_s), _ns(b.end_s)
        if end > start:
            yield {
                "ph": "X", "name": f"{b.phase} {b.microbatch}", "cat": b.phase, "pid": pid, "tid": tids[stage_name(b.stage)],
                "ts": _us(start), "dur": _us(end - start), "args": {"stage": b.stage, "microbatch": b.microbatch, "phase": b.phase},
            }
    if prediction.timeline.blocks:
        return
    for step, span in zip(prediction.steps, prediction.timeline.spans, strict=True):
        start, end = _ns(span.start_s), _ns(span.end_s)
        if end > start:
            yield {
                "ph": "X", "name": step.label, "cat": step.phase, "pid": pid, "tid": tids[span.stream], "ts": _us(start),
                "dur": _us(end - start),
                "args": {"step": step.index, "layer": step.layer, "phase": step.phase, "sent_bytes": step.sent_bytes,
                         "seconds": step.seconds, "exposed_s": step.exposed_s},
            }


def _arrows(pid: int, prediction: Prediction, threads: Sequence[str]) -> Iterator[dict[str, Any]]:
    """From every communication that computing stands still for, to the computation that resumes."""
    if prediction.timeline.blocks:
        return
    tids = {stream: tid for tid, stream in enumerate(threads)}
    still = gaps(prediction)
    resumes = [end for _, end in still]
    for step, span, wait_s in zip(prediction.steps, prediction.timeline.spans, prediction.timeline.waits_s, strict=True):
        start, end = _ns(span.start_s), _ns(span.end_s)
        at = bisect_left(resumes, span.end_s * (1 - 1e-9))
        if span.stream == COMPUTE or wait_s <= 0 or end <= start or at == len(still) or span.end_s < still[at][0]:
            continue
        resume = _ns(resumes[at])
        if resume >= _ns(prediction.timeline.total_s):  # the end of the iteration waits: no step
            continue
        arrow = {"name": "waits for", "cat": "wait", "pid": pid, "id": pid * len(prediction.steps) + step.index}
        # an end of an arrow belongs to the slice that is open on its thread at its time
        yield arrow | {"ph": "s", "tid": tids[span.stream], "ts": _us(end - 1)}
        yield arrow | {"ph": "f", "bp": "e", "tid": tids[COMPUTE], "ts": _us(resume)}


def trace(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The timelines in the trace-event format.

    Parameters
    ----------
    predictions : sequence of Prediction
        Each becomes a process.

    Returns
    -------
    dict
        ``traceEvents``: names first, then the steps as complete events in order of time (``ts`` and ``dur`` in microseconds; steps of no
        length left out), then arrows from communication to what waited for it.
    """
    events: list[dict[str, Any]] = []
    for pid, prediction in enumerate(predictions, 1):
        threads = streams(prediction)
        events += _names(pid, prediction, threads)
        events += sorted(_steps(pid, prediction, threads), key=lambda event: (event["ts"], event["tid"]))
        events += _arrows(pid, prediction, threads)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save(predictions: Sequence[Prediction], path: str) -> None:
    """Write the trace (whole or not at all).

    Parameters
    ----------
    path : str
        A JSON file, to open in https://ui.perfetto.dev.

    Raises
    ------
    InputError
        Nothing to write, a time that is not finite, or the file cannot be written.
    """
    if not predictions:
        raise InputError("no timeline to write: every strategy was skipped; choose a larger batch or fewer ranks")
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        text = json.dumps(trace(predictions), allow_nan=False)
        with open(temporary, "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(temporary, path)
    except (ValueError, OverflowError) as err:
        raise InputError(f"cannot write timeline {path}: a time is not finite ({err}); check the machine's rates") from err
    except OSError as err:
        raise InputError(f"cannot write timeline {path}: {err.strerror}; choose a folder that exists, with room") from err
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
