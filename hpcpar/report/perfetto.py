"""Predicted timelines as trace events, for https://ui.perfetto.dev or chrome://tracing: a process
per prediction, a thread per stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Span, Timeline
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
    def timeline(self) -> Timeline[float]: ...


@dataclass(frozen=True)
class Stream:
    """A stage's computing, or its communication on a level of the machine."""

    stage: int
    name: str

    @property
    def computes(self) -> bool:
        return self.name == COMPUTE


def stream_of(step: StepCost, when: Span[float]) -> Stream:
    """The stream of a step."""
    return Stream(step.stage, when.stream)


def streams(prediction: Simulated) -> dict[Stream, str]:
    """Streams of a timeline and their titles: stage by stage computing, then the levels of the
    machine in order of first use.
    """
    used = dict.fromkeys(map(stream_of, prediction.steps, prediction.timeline.spans))
    out: dict[Stream, str] = {}
    stages = sorted({stream.stage for stream in used} | {0})
    for stage in stages:
        names = [COMPUTE, *(s.name for s in used if s.stage == stage and not s.computes)]
        prefix = f"stage {stage} " if len(stages) > 1 else ""
        out |= {Stream(stage, name): prefix + name for name in names}
    return out


def title(prediction: Simulated) -> str:
    """Network, strategy and ranks."""
    ranks = f"{prediction.ranks} rank{'s' if prediction.ranks != 1 else ''}"
    return f"{prediction.network} {prediction.strategy}, {ranks}"


def gaps(prediction: Simulated, stage: int = 0) -> list[tuple[float, float]]:
    """When the computing of a stage stands still, as (start, end) in s."""
    out: list[tuple[float, float]] = []
    now = 0.0
    work = []
    for step, when in zip(prediction.steps, prediction.timeline.spans, strict=True):
        mine = stream_of(step, when) == Stream(stage, COMPUTE)
        if mine and ns(when.end_s) > ns(when.start_s):
            work.append((when.start_s, when.end_s))
    for start, end in sorted([*work, (prediction.timeline.total_s,) * 2]):
        if start - now > 1e-9 * prediction.timeline.total_s:  # more than rounding
            out.append((now, start))
        now = max(now, end)
    return out


def _steps(pid: int, prediction: Simulated, tids: Mapping[Stream, int]) -> Iterator[Event]:
    free = dict.fromkeys(tids, 0)
    for step, when in zip(prediction.steps, prediction.timeline.spans, strict=True):
        stream = stream_of(step, when)
        # of messages that are on their way at once, the later one is shown from the other's end
        start, end = max(free[stream], ns(when.start_s)), ns(when.end_s)
        if end > start:
            free[stream] = end
            yield span(step.label, step.phase, pid, tids[stream], start, end,
                       step=step.index, layer=step.layer, phase=step.phase, microbatch=step.part,
                       sent_bytes=step.sent_bytes, seconds=step.seconds, exposed_s=step.exposed_s)


def _arrows(pid: int, prediction: Simulated, tids: Mapping[Stream, int]) -> Iterator[Event]:
    """From every communication that computing of its stage stands still for, to the computation
    that resumes.
    """
    still = {stream.stage: gaps(prediction, stream.stage) for stream in tids if stream.computes}
    resumes = {stage: [end for _, end in pauses] for stage, pauses in still.items()}
    line = prediction.timeline
    for step, when, wait_s in zip(prediction.steps, line.spans, line.waits_s, strict=True):
        stream, end = stream_of(step, when), ns(when.end_s)
        if stream.computes or wait_s <= 0 or end <= ns(when.start_s):
            continue
        pauses = still[step.stage]
        at = bisect_left(resumes[step.stage], when.end_s * (1 - 1e-9))
        if at == len(pauses) or when.end_s < pauses[at][0]:
            continue
        resume = ns(pauses[at][1])
        if resume < ns(line.total_s):  # else the end of the iteration waits: no step
            yield from arrow("waits for", "wait", pid, pid * len(prediction.steps) + step.index,
                             (tids[stream], end - 1), (tids[Stream(step.stage, COMPUTE)], resume))


def events(pid: int, prediction: Simulated, name: str) -> list[Event]:
    """One timeline as a process: names first, then the steps in order of time, then arrows from
    communication to what waited for it.
    """
    threads = streams(prediction)
    tids = {stream: tid for tid, stream in enumerate(threads)}
    out = list(names(pid, name, f"on {prediction.machine}", dict(enumerate(threads.values()))))
    out += in_order(list(_steps(pid, prediction, tids)))
    out += _arrows(pid, prediction, tids)
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
        raise InputError("no timeline to write: every strategy was skipped; "
                         "choose a larger batch or fewer ranks")
    try:
        found = trace(predictions)["traceEvents"]
    except (ValueError, OverflowError) as err:
        raise InputError(f"cannot write timeline {path}: a time is not finite ({err}); "
                         "check the machine's rates") from err
    write(found, path)
