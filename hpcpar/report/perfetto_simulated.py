"""The simulated timelines of ranks as trace events: a process per rank, a thread for computing and
one for each level of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcpar.report.simulated import Simulated
from hpcpar.report.trace_events import Event, in_order, names, ns, span, write
from hpcpar.schedule.outline_steps import Move

#: Ranks in a trace, unless told otherwise.
RANKS = 16


def events(of: Simulated, rank: int) -> Iterator[Event]:
    """The first iteration of a rank."""
    levels = [level.name for level in of.machine.levels]
    yield from names(rank + 1, f"rank {rank}", of.plan.strategy,
                     dict(enumerate(("compute", *levels))))
    found = []
    start_s, end_s = of.played.start_s[:, rank], of.played.end_s[:, rank]
    for i in map(int, np.flatnonzero(~np.isnan(start_s))):
        entry, price = of.costs.entries[i], of.costs.steps[i]
        moves = isinstance(entry.step, Move)
        start, end = ns(start_s[i]), ns(end_s[i])
        if end > start:
            found.append(span(of.label(i), entry.step.phase.value, rank + 1,
                              1 + int(price.level) if moves else 0, start, end, step=i,
                              microbatch=entry.part, sent_bytes=int(of.sent_bytes[i, rank]),
                              messages=int(of.messages[i, rank])))
    yield from in_order(found)


def save(of: Simulated, path: str, ranks: int = RANKS) -> None:
    """Writes the timelines of the first `ranks` ranks atomically into a JSON file.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    count = min(ranks, int(of.plan.ranks))
    write((event for rank in range(count) for event in events(of, rank)), path)
