"""Late senders: the part of a communication that waits for a partner that has not begun it.

A step cannot complete before its last partner arrives; the delay of that partner is the arrival
skew.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.clock_sync import common
from hpcpar.errors import InputError
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Kind, Phase
from hpcpar.schedule.waves import groups
from hpcpar.train.record_with_schedule import RecordWithSchedule, with_schedule
from hpcpar.train.run_record import RunRecord


def between_stages(run: RecordWithSchedule, stages: Sequence[int], index: int) -> bool:
    """True for a movement between stages (given by their first ranks), and for the sum of the loss.
    """
    step = run.schedule.steps[index]
    if not isinstance(step, Comm) or len(stages) == 1:
        return False
    ranks = [int(step.source.config.first), int(step.destination.config.first)]
    source, destination = np.searchsorted(stages, ranks, side="right")
    return step.phase is Phase.LOSS or bool(source != destination)


def partners(step: Comm, rank: int) -> tuple[int, ...]:
    """Ranks that `rank` needs to complete a step: the other members of a collective, or the ranks
    with which it exchanges messages.
    """
    ex = exchange(step, rank)
    if _meets_all(step):
        return tuple(peer for peer in ex.peers if peer != rank)
    return tuple(sorted({ex.peers[m.peer] for r in ex.rounds for m in (*r.recvs, *r.sends)}))


def _meets_all(step: Comm) -> bool:
    """True for a collective in which every member needs all others."""
    rooted = step.kind in (Kind.REDUCE, Kind.BROADCAST)
    return step.group is not None and (ALGORITHMS[step.algorithm].library or not rooted)


def _last_of_others(entered: NDArray[Any], members: NDArray[np.int64]
                    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The last of the other members of a group: its arrival and rank, both [members, kept]."""
    last_two = np.argsort(entered, axis=0, kind="stable")[-2:]
    mine = np.arange(len(members))[:, None]
    last = np.where(last_two[-1] == mine, last_two[0], last_two[-1])
    return np.take_along_axis(entered, last, axis=0), members[last]


@dataclass(frozen=True)
class Clocked:
    """Steps of the kept iterations on one clock, [ranks, kept, steps]; NaN: not on this rank.

    Times are in s since the start of the first kept iteration.
    """

    #: The run; None if its network is missing.
    run: RecordWithSchedule | None
    #: [kept] iteration numbers.
    iterations: NDArray[np.int64]
    #: [ranks, kept] start of each iteration.
    begin_s: NDArray[Any]
    start_s: NDArray[Any]
    #: End and final wait of communications.
    end_s: NDArray[Any]
    wait_s: NDArray[Any]
    #: Start of a communication on the rank's last partner.
    last_s: NDArray[Any]
    #: That partner, the late sender; -1 without partners.
    who: NDArray[np.int64]

    @cached_property
    def waiting_s(self) -> NDArray[Any]:
        """The part of each communication's final wait before its last partner arrives."""
        before = np.minimum(self.last_s, self.end_s) - (self.end_s - self.wait_s)
        return np.nan_to_num(np.clip(before, 0.0, self.wait_s))


def clocked(record: RunRecord, first: int = 0) -> Clocked:
    """Puts the ranks' times on rank 0's clock.

    It includes iterations from `first` on. If the network is missing, all ranks that have a step
    count as its partners.

    Raises
    ------
    InputError
        The record has no step times.
    """
    kept, clock, begins = record.kept, record.clock, record.begin_s
    starts, ends, waits = record.start_s, record.end_s, record.wait_s
    if (kept is None or clock is None or begins is None or starts is None or ends is None
            or waits is None):
        raise InputError(f"run record {record.path} has no start times of steps; run again with "
                         "this hpcpar")
    run = None
    with suppress(InputError):
        run = with_schedule(record)
    chosen = kept >= first
    local = begins[:, chosen]
    begin = common(local, clock)
    zero = begin.min() if begin.size else 0.0
    start, end = (
        common(local[:, :, None] + each[:, chosen], clock) - zero for each in (starts, ends)
    )
    last, who = np.full(start.shape, np.nan), np.full(start.shape, -1)
    entered = np.nan_to_num(start, nan=-np.inf)
    for i, step in enumerate(record.steps):
        if step.kind != "comm":
            continue
        taking = [rank for rank in range(len(start)) if not np.isnan(start[rank, :, i]).all()]
        frozen = run.schedule.steps[i] if run else None
        if isinstance(frozen, Comm) and _meets_all(frozen):
            assert frozen.group is not None
            for members in groups(frozen, frozen.group, len(start))[0]:
                last[members, :, i], who[members, :, i] = _last_of_others(entered[members, :, i],
                                                                          members)
            continue
        for rank in taking:
            others = [peer for peer in taking if peer != rank]
            if isinstance(frozen, Comm):
                others = list(partners(frozen, rank))
            if others:
                theirs = entered[others, :, i]
                last[rank, :, i] = theirs.max(axis=0)
                who[rank, :, i] = np.array(others)[theirs.argmax(axis=0)]
    return Clocked(run, kept[chosen], begin - zero, start, end, waits[:, chosen], last, who)
