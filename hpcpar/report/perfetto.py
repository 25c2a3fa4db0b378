"""Predicted timelines as trace events, for https://ui.perfetto.dev or chrome://tracing: a process
per prediction, a thread per stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Timeline
from hpcpar.errors import InputError
from hpcpar.report.events import Event, arrow, document, in_order, names, ns, span
from hpcpar.report.events import save as write

#: The stream of the steps that compute; the others are levels of the machine.
COMPUTE = "compute"


class Simulated(Protocol):
    """What a trace shows of a prediction."""

    @property
    def network(self) -> str: ...
    @property
    def machine(self) -> str: ...
    @property
    def strategy(self) -> str: ...
    @property
    def ranks(self) -> int: ...
    @property
    def steps(self) -> Sequence[StepCost]: ...
    @property
    def timeline(self) -> Timeline: ...


def streams(prediction: Simulated) -> list[str]:
    """Streams of a timeline: computing, then the levels of the machine in order of first use; of a
    pipeline, its stages.
    """
    if prediction.timeline.blocks:
        return [stage_name(i) for i in range(1 + max(b.stage for b in prediction.timeline.blocks))]
    used = dict.fromkeys(span.stream for span in prediction.timeline.spans)
    return [COMPUTE, *(name for name in used if name != COMPUTE)]


def stage_name(stage: int) -> str:
    """The stream of a pipeline's stage."""
    return f"stage {stage}"


def title(prediction: Simulated) -> str:
    """Network, strategy and ranks."""
    return f"{prediction.network} {prediction.strategy}, {prediction.ranks} rank{'s' if prediction.ranks != 1 else ''}"


def gaps(prediction: Simulated) -> list[tuple[float, float]]:
    """When computing stands still, as (start, end) in s: what communication is exposed."""
    out: list[tuple[float, float]] = []
    now = 0.0
    work = [(s.start_s, s.end_s) for s in prediction.timeline.spans if s.stream == COMPUTE
            and ns(s.end_s) > ns(s.start_s)]
    for start, end in sorted([*work, (prediction.timeline.total_s,) * 2]):
        if start - now > 1e-9 * prediction.timeline.total_s:  # more than rounding
            out.append((now, start))
        now = max(now, end)
    return out


def _steps(pid: int, prediction: Simulated, threads: Sequence[str]) -> Iterator[Event]:
    tids = {stream: tid for tid, stream in enumerate(threads)}
    for b in prediction.timeline.blocks:
        start, end = ns(b.start_s), ns(b.end_s)
        if end > start:
            yield span(f"{b.phase} {b.microbatch}", b.phase, pid, tids[stage_name(b.stage)], start, end, stage=b.stage,
                       microbatch=b.microbatch, phase=b.phase)
    if prediction.timeline.blocks:
        return
    for step, when in zip(prediction.steps, prediction.timeline.spans, strict=True):
        start, end = ns(when.start_s), ns(when.end_s)
        if end > start:
            yield span(step.label, step.phase, pid, tids[when.stream], start, end, step=step.index, layer=step.layer, phase=step.phase,
                       sent_bytes=step.sent_bytes, seconds=step.seconds, exposed_s=step.exposed_s)


def _arrows(pid: int, prediction: Simulated, threads: Sequence[str]) -> Iterator[Event]:
    """From every communication that computing stands still for, to the computation that resumes."""
    if prediction.timeline.blocks:
        return
    tids = {stream: tid for tid, stream in enumerate(threads)}
    still = gaps(prediction)
    resumes = [end for _, end in still]
    for step, when, wait_s in zip(prediction.steps, prediction.timeline.spans,
                                  prediction.timeline.waits_s, strict=True):
        start, end = ns(when.start_s), ns(when.end_s)
        at = bisect_left(resumes, when.end_s * (1 - 1e-9))
        if when.stream == COMPUTE or wait_s <= 0 or end <= start or at == len(
            still) or when.end_s < still[at][0]:
            continue
        resume = ns(resumes[at])
        if resume >= ns(prediction.timeline.total_s):  # the end of the iteration waits: no step
            continue
        yield from arrow("waits for", "wait", pid, pid * len(prediction.steps) + step.index, (tids[when.stream], end - 1),
                         (tids[COMPUTE], resume))


def events(pid: int, prediction: Simulated, name: str) -> list[Event]:
    """One timeline as a process: names first, then the steps in order of time, then arrows from
    communication to what waited for it.
    """
    threads = streams(prediction)
    out = list(names(pid, name, f"on {prediction.machine}", dict(enumerate(threads))))
    out += in_order(list(_steps(pid, prediction, threads)))
    out += _arrows(pid, prediction, threads)
    return out


def trace(predictions: Sequence[Simulated]) -> dict[str, Any]:
    """The timelines in the trace-event format.

    Parameters
    ----------
    predictions : sequence of Prediction
        Each becomes a process.

    Returns
    -------
    dict
        ``traceEvents``: of each its `events` (``ts`` and ``dur`` in microseconds; steps of no
        length left out).
    """
    return document([event for pid, prediction in enumerate(predictions, 1)
                     for event in events(pid, prediction, title(prediction))])


def save(predictions: Sequence[Simulated], path: str) -> None:
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
    try:
        found = trace(predictions)["traceEvents"]
    except (ValueError, OverflowError) as err:
        raise InputError(f"cannot write timeline {path}: a time is not finite ({err}); check the machine's rates") from err
    write(found, path)
