"""Predicted timelines as trace events: a process per prediction, a thread per stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcpar.errors import InputError
from hpcpar.prediction.prediction import Prediction, PredictionFile, StepCost
from hpcpar.report.traces.trace_events import Event, arrow, in_order, names, ns, span, write

#: The stream of compute steps; all others are levels of the machine.
COMPUTE = "compute"
Simulated = Prediction | PredictionFile


class Stream(NamedTuple):
    """A stage's computing, or its communication on a level of the machine."""

    stage: int
    name: str

    @property
    def computes(self) -> bool:
        return self.name == COMPUTE


def stream_of(step: StepCost) -> Stream:
    """The stream of a step."""
    return Stream(step.stage, step.stream)


def streams(prediction: Simulated) -> dict[Stream, str]:
    """Streams of a timeline with their titles: for each stage, computing, then the machine's levels
    in order of first use.
    """
    used = dict.fromkeys(map(stream_of, prediction.steps))
    out: dict[Stream, str] = {}
    stages = sorted({stream.stage for stream in used} | {0})
    for stage in stages:
        names = [COMPUTE, *(s.name for s in used if s.stage == stage and not s.computes)]
        prefix = f"stage {stage} " if len(stages) > 1 else ""
        out |= {Stream(stage, name): prefix + name for name in names}
    return out


def title(prediction: Simulated) -> str:
    """The network, strategy and ranks of a prediction."""
    ranks = f"{prediction.ranks} rank{'s' if prediction.ranks != 1 else ''}"
    return f"{prediction.network} {prediction.strategy}, {ranks}"


def gaps(prediction: Simulated, stage: int = 0) -> list[tuple[float, float]]:
    """Pauses in the computing of a stage, as (start, end) in s."""
    total_s = prediction.total_s
    work = [(step.start_s, step.end_s) for step in prediction.steps
            if stream_of(step) == (stage, COMPUTE) and ns(step.end_s) > ns(step.start_s)]
    out, now = [], 0.0
    for start, end in sorted([*work, (total_s, total_s)]):
        if start - now > 1e-9 * total_s:  # more than rounding
            out.append((now, start))
        now = max(now, end)
    return out


def _steps(pid: int, prediction: Simulated, tids: Mapping[Stream, int]) -> Iterator[Event]:
    free = dict.fromkeys(tids, 0)
    for step in prediction.steps:
        # if messages overlap, the later one is shown from the end of the earlier one
        stream = stream_of(step)
        start, end = max(free[stream], ns(step.start_s)), ns(step.end_s)
        if end > start:
            free[stream] = end
            yield span(step.label, step.phase, pid, tids[stream], start, end,
                       step=step.index, layer=step.layer, phase=step.phase, microbatch=step.part,
                       sent_bytes=step.sent_bytes, seconds=step.seconds, exposed_s=step.exposed_s)


def _arrows(pid: int, prediction: Simulated, tids: Mapping[Stream, int]) -> Iterator[Event]:
    """Arrows from each communication that its stage's computing waits for, to the computation that
    resumes.
    """
    idle = {stream.stage: gaps(prediction, stream.stage) for stream in tids if stream.computes}
    for step in prediction.steps:
        end = ns(step.end_s)
        if not step.is_comm or step.exposed_s <= 0 or end <= ns(step.start_s):
            continue
        pauses = idle[step.stage]
        at = bisect_left(pauses, step.end_s * (1 - 1e-9), key=lambda pause: pause[1])
        if at == len(pauses) or step.end_s < pauses[at][0]:
            continue
        resume = ns(pauses[at][1])
        if resume < ns(prediction.total_s):  # else only the end of the iteration waits
            yield from arrow("waits for", "wait", pid, pid * len(prediction.steps) + step.index,
                             (tids[stream_of(step)], end - 1),
                             (tids[Stream(step.stage, COMPUTE)], resume))


def events(pid: int, prediction: Simulated, name: str) -> list[Event]:
    """One timeline as a process: names, steps in time order, and arrows from each communication to
    the step that waited for it.
    """
    threads = streams(prediction)
    tids = {stream: tid for tid, stream in enumerate(threads)}
    out = list(names(pid, name, f"on {prediction.machine}", dict(enumerate(threads.values()))))
    out += in_order(list(_steps(pid, prediction, tids)))
    out += _arrows(pid, prediction, tids)
    return out


def trace(predictions: Sequence[Simulated]) -> Iterator[Event]:
    """The events of all timelines, one process each, without steps of zero length."""
    for pid, prediction in enumerate(predictions, 1):
        yield from events(pid, prediction, title(prediction))


def save(predictions: Sequence[Simulated], path: str) -> None:
    """Writes the timelines atomically into a JSON file."""
    if not predictions:
        raise InputError("no timeline to write: every strategy was skipped; "
                         "choose a larger batch or fewer ranks")
    write(trace(predictions), path)
