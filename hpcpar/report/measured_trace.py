"""The measured timelines of all ranks on one clock, as trace events: of every rank its program, and
beside it its communications.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcpar.report.events import Event, arrow, in_order, names, ns, span
from hpcpar.report.late_senders import Clocked, ClockOrigin, clocked, origin
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm
from hpcpar.train.record import RunRecord

#: Numbers of a rank's threads: its program, then its communications; several where some are in
#: flight at the same time.
_THREADS = 1 << 16


@dataclass(frozen=True)
class Place:
    """Where a communication is drawn: its thread and time (ns)."""

    tid: int
    start: int
    end: int


def measured(record: RunRecord, pid: int, iterations: int) -> list[Event]:
    """The last `iterations` of the iterations whose steps are kept, as a process."""
    source = origin(record)
    first = 0 if record.kept is None else record.kept[-iterations:].min(initial=record.iterations)
    times = clocked(record, source, int(first))
    threads: dict[int, str] = {}
    spans: list[Event] = []
    places: dict[tuple[int, int, int], Place] = {}
    for rank in range(len(record.ranks)):
        threads[rank * _THREADS] = f"rank {rank}"
        spans += _program(record, times, source, pid, rank)
        for key, place in _lanes(times, rank).items():
            places[key] = place
            lane = place.tid % _THREADS
            threads[place.tid] = f"rank {rank} communication{f' {lane}' if lane > 1 else ''}"
            step = record.steps[key[2]]
            spans.append(span(step.label, step.phase, pid, place.tid, place.start, place.end,
                              **_facts(record, times, source, *key)))
    title = f"measured: {record.plan['strategy']}, {len(record.ranks)} ranks"
    events = list(names(pid, title, _precision(record), dict(sorted(threads.items()))))
    events += in_order(spans)
    number = pid << 32  # apart from the arrows of other processes
    for source_place, target in _messages(record, times, source, places):
        number += 1
        events += arrow("sent to", "message", pid, number, (source_place.tid, source_place.start),
                        (target.tid, target.end - 1))
    return events


def _precision(record: RunRecord) -> str:
    """How far the ranks' clocks may be apart."""
    assert record.clock is not None
    return f"clocks within {record.clock[:, :, 2].max() / 2 * 1e6:.2g} us"


def _facts(record: RunRecord, times: Clocked, source: ClockOrigin | None, rank: int, k: int,
           i: int) -> dict[str, object]:
    """What a viewer shows of a step."""
    step = record.steps[i]
    out: dict[str, object] = {"step": i, "iteration": int(times.iterations[k]), "layer": step.layer,
                              "phase": step.phase}
    if source is not None:
        out["microbatch"] = source.schedule.steps[i].part
    if step.kind == "comm":
        out |= {"algorithm": step.algorithm, "sent_bytes": int(record.sent_bytes[rank, i]),
                "messages": int(record.messages[rank, i]),
                "waiting_s": float(times.waiting_s[rank, k, i])}
        if times.who[rank, k, i] >= 0:
            out["last_rank"] = int(times.who[rank, k, i])
    return out


def _program(record: RunRecord, times: Clocked, source: ClockOrigin | None, pid: int,
             rank: int) -> Iterator[Event]:
    """The iterations; in them computing, posting and waiting, one after the other; in a wait, what
    lies before the last partner.
    """
    tid, done = rank * _THREADS, 0
    waiting = times.waiting_s[rank]
    for k, iteration in enumerate(times.iterations):
        begin = max(done, ns(times.begin_s[rank, k]))
        done = end = max(begin, ns(times.begin_s[rank, k] + record.iteration_s[rank, iteration]))
        yield span(f"iteration {iteration}", "iteration", pid, tid, begin, end,
                   iteration=int(iteration))
        pieces = []
        for i in map(int, np.flatnonzero(~np.isnan(times.start_s[rank, k]))):
            start, label = times.start_s[rank, k, i], record.steps[i].label
            wait = times.wait_s[rank, k, i] if record.steps[i].kind == "comm" else 0.0
            pieces.append((start, start + record.seconds[rank, iteration, i] - wait,
                           label if wait == 0.0 else f"{label}: post", i, False))
            if wait > 0.0:
                pieces.append((times.end_s[rank, k, i] - wait, times.end_s[rank, k, i],
                               f"{label}: wait", i, True))
        at = begin
        for start, stop, label, i, waits in sorted(pieces):
            # single precision leaves neighbours some nanoseconds into each other
            first, last = max(at, ns(start)), min(end, ns(stop))
            if last <= first:
                continue
            at = last
            facts = _facts(record, times, source, rank, k, i)
            yield span(label, record.steps[i].phase, pid, tid, first, last, **facts)
            begun = min(last, ns(start + waiting[k, i])) if waits else first
            if begun > first:
                yield span(f"for rank {times.who[rank, k, i]}", "waiting", pid, tid, first, begun)


def _lanes(times: Clocked, rank: int) -> dict[tuple[int, int, int], Place]:
    """The communications of a rank on as few threads as keep them apart, by (rank, kept iteration,
    step).
    """
    found = []
    for k, i in np.argwhere(~np.isnan(times.end_s[rank])):
        start, end = ns(times.start_s[rank, k, i]), ns(times.end_s[rank, k, i])
        if end > start:
            found.append((start, end, int(k), int(i)))
    free: list[int] = []
    out = {}
    for start, end, k, i in sorted(found):
        lane = next((n for n, until in enumerate(free) if until <= start), len(free))
        free[lane:lane + 1] = [end]
        out[rank, k, i] = Place(rank * _THREADS + 1 + lane, start, end)
    return out


def _messages(
    record: RunRecord, times: Clocked, source: ClockOrigin | None,
    places: dict[tuple[int, int, int], Place],
) -> Iterator[tuple[Place, Place]]:
    """From every sender of a point-to-point movement to its receivers; of a collective, from the
    last rank to those that waited for it.
    """
    for (rank, k, i), target in places.items():
        step = source.schedule.steps[i] if source else None
        if isinstance(step, Comm) and step.group is None:
            ex = exchange(step, rank)
            senders = {ex.peers[m.peer] for r in ex.rounds for m in r.recvs}
        else:
            senders = {int(times.who[rank, k, i])} if times.waiting_s[rank, k, i] > 0 else set()
        for sender in sorted(senders):
            origin_place = places.get((sender, k, i))
            if origin_place is not None and origin_place.start < target.end:
                yield origin_place, target
