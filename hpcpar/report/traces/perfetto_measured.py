"""Measured timelines of all ranks on one clock, as trace events: each rank's program and
communications.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcpar.report.late_senders import Clocked, clocked
from hpcpar.report.traces.trace_events import Event, arrow, in_order, names, ns, span
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm
from hpcpar.train.run_record import SIMULATED, RunRecord

#: Thread numbers reserved for each rank: its program, then lanes for overlapping communications.
_THREADS = 1 << 16


class Place(NamedTuple):
    """A communication in the drawing: its thread and time (ns)."""

    tid: int
    start: int
    end: int


#: (rank, kept iteration, step) -> place.
Places = dict[tuple[int, int, int], Place]


def measured(record: RunRecord, pid: int, iterations: int, ranks: int | None = None
             ) -> list[Event]:
    """The last `iterations` kept iterations on the first `ranks` ranks (default all), as a process.
    """
    first = 0 if record.kept is None else record.kept[-iterations:].min(initial=record.iterations)
    return _MeasuredTrace(record, clocked(record, int(first)), pid,
                          min(ranks or len(record.ranks), len(record.ranks))).events()


@dataclass(frozen=True)
class _MeasuredTrace:
    """The first ranks of a record on one clock, drawn as process `pid`."""

    record: RunRecord
    times: Clocked
    pid: int
    ranks: int

    def events(self) -> list[Event]:
        record, ranks = self.record, range(self.ranks)
        threads = {rank * _THREADS: f"rank {rank}" for rank in ranks}
        spans = [event for rank in ranks for event in self._program(rank)]
        places: Places = {}
        for rank in ranks:
            places |= self._lanes(rank)
        for (rank, k, i), place in places.items():
            lane = place.tid % _THREADS
            threads[place.tid] = f"rank {rank} communication{f' {lane}' if lane > 1 else ''}"
            step = record.steps[i]
            spans.append(span(step.label, step.phase, self.pid, place.tid, place.start, place.end,
                              **self._facts(rank, k, i)))
        how = "simulated rank by rank" if record.ranks[0].device == SIMULATED else "measured"
        title = f"{how}: {record.plan['strategy']}, {len(record.ranks)} ranks"
        # clocks may differ by half a round trip
        assert record.clock is not None
        apart = f"clocks within {record.clock[:, :, 2].max() / 2 * 1e6:.2g} us"
        events = [*names(self.pid, title, apart, dict(sorted(threads.items()))), *in_order(spans)]
        # arrow numbers that no other process uses
        for number, (source, target) in enumerate(self._messages(places), (self.pid << 32) + 1):
            events += arrow("sent to", "message", self.pid, number, (source.tid, source.start),
                            (target.tid, target.end - 1))
        return events

    def _facts(self, rank: int, k: int, i: int) -> dict[str, object]:
        """The fields of a step that a viewer shows."""
        record, times, step = self.record, self.times, self.record.steps[i]
        out: dict[str, object] = {"step": i, "iteration": int(times.iterations[k]),
                                  "layer": step.layer, "phase": step.phase}
        if times.run is not None:
            out["microbatch"] = times.run.schedule.steps[i].part
        if step.kind == "comm":
            out |= {"algorithm": step.algorithm, "sent_bytes": int(record.sent_bytes[rank, i]),
                    "messages": int(record.messages[rank, i]),
                    "waiting_s": float(times.waiting_s[rank, k, i])}
            if times.who[rank, k, i] >= 0:
                out["last_rank"] = int(times.who[rank, k, i])
        return out

    def _program(self, rank: int) -> Iterator[Event]:
        """The iterations, inside them computing, posting and waiting in sequence, and inside a wait
        the time before the last partner.
        """
        record, times, pid, tid = self.record, self.times, self.pid, rank * _THREADS
        done = 0
        for k, iteration in enumerate(times.iterations):
            begin_s, place = times.begin_s[rank, k], np.searchsorted(record.timed, iteration)
            begin = max(done, ns(begin_s))
            done = end = max(begin, ns(begin_s + record.iteration_s[rank, iteration]))
            yield span(f"iteration {iteration}", "iteration", pid, tid, begin, end,
                       iteration=int(iteration))
            pieces = []
            for i in map(int, np.flatnonzero(~np.isnan(times.start_s[rank, k]))):
                start_s, label = times.start_s[rank, k, i], record.steps[i].label
                wait_s = times.wait_s[rank, k, i] if record.steps[i].kind == "comm" else 0.0
                stop_s = start_s + record.seconds[rank, place, i] - wait_s
                pieces.append((start_s, stop_s, label if wait_s == 0.0 else f"{label}: post", i, 0))
                if wait_s > 0.0:
                    end_s = times.end_s[rank, k, i]
                    pieces.append((end_s - wait_s, end_s, f"{label}: wait", i,
                                   times.waiting_s[rank, k, i]))
            at = begin
            for start_s, stop_s, label, i, waiting_s in sorted(pieces):
                # in single precision, neighbors overlap by some nanoseconds
                first, last = max(at, ns(start_s)), min(end, ns(stop_s))
                if last <= first:
                    continue
                at = last
                yield span(label, record.steps[i].phase, pid, tid, first, last,
                           **self._facts(rank, k, i))
                begun = min(last, ns(start_s + waiting_s))
                if waiting_s > 0 and begun > first:
                    yield span(f"for rank {times.who[rank, k, i]}", "waiting", pid, tid, first,
                               begun)

    def _lanes(self, rank: int) -> Places:
        """A rank's communications, on as few threads as keep them from overlapping."""
        times, found = self.times, []
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

    def _messages(self, places: Places) -> Iterator[tuple[Place, Place]]:
        """(source, target) from each sender of a point-to-point movement to its receivers, and from
        a collective's last rank to the ranks that waited for it.
        """
        times = self.times
        for (rank, k, i), target in places.items():
            step = times.run.schedule.steps[i] if times.run else None
            if isinstance(step, Comm) and step.group is None:
                ex = exchange(step, rank)
                senders = {ex.peers[m.peer] for r in ex.rounds for m in r.recvs}
            else:
                senders = {int(times.who[rank, k, i])} if times.waiting_s[rank, k, i] > 0 else set()
            for sender in sorted(senders):
                origin = places.get((sender, k, i))
                if origin is not None and origin.start < target.end:
                    yield origin, target
