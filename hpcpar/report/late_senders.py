"""Late senders: the part of a communication that waits for a partner that has not begun it.

A step is not complete before the last of its partners takes part; how much later than the others
that one comes is the arrival skew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.clock_sync import common
from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan import plan as plans
from hpcpar.plan.plan import Plan
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Algorithm, Comm, Kind, Phase, Schedule
from hpcpar.train.record import RunRecord, steps_of


@dataclass(frozen=True)
class ClockOrigin:
    """The network, plan and schedule of a record's steps."""

    network: Network
    plan: Plan
    schedule: Schedule

    @property
    def stages(self) -> list[int]:
        """The first ranks of a pipeline's stages; one where there is no pipeline."""
        return firsts(self.network, self.plan)

    def stage(self, rank: int) -> int:
        """The pipeline stage that a rank belongs to."""
        return int(np.searchsorted(self.stages, rank, side="right")) - 1

    def between_stages(self, index: int) -> bool:
        """True for a movement from stage to stage, and for the loss that all stages get."""
        step = self.schedule.steps[index]
        if not isinstance(step, Comm) or len(self.stages) == 1:
            return False
        source, destination = int(step.source.config.first), int(step.destination.config.first)
        return step.phase is Phase.LOSS or self.stage(source) != self.stage(destination)


def origin(record: RunRecord) -> ClockOrigin | None:
    """Lower the record's plan again; None where its network is missing or the steps differ."""
    try:
        plan = plans.from_json(record.plan, record.path)
        network = plan.network.build()
        for training in (True, False):
            schedule = schedule_for(network, plan, training)
            if steps_of(schedule) == record.steps:
                return ClockOrigin(network, plan, schedule)
    except InputError:
        return None
    return None


def partners(step: Comm, rank: int) -> tuple[int, ...]:
    """Ranks that `rank` needs to complete a step.

    The others of a collective, or those that it exchanges messages with.
    """
    ex = exchange(step, rank)
    rooted = step.kind in (Kind.REDUCE, Kind.BROADCAST)
    if step.algorithm is Algorithm.MPI or (step.group is not None and not rooted):
        return tuple(peer for peer in ex.peers if peer != rank)
    return tuple(sorted({ex.peers[m.peer] for r in ex.rounds for m in (*r.recvs, *r.sends)}))


@dataclass(frozen=True)
class Clocked:
    """Steps of the kept iterations on one clock, [ranks, kept, steps]; NaN: rank takes no part.

    Times are in s after the begin of the first kept iteration.

    Attributes
    ----------
    iterations : ndarray
        [kept] numbers.
    begin_s : ndarray
        [ranks, kept] beginning of the iterations.
    last_s : ndarray
        Begin of a communication on the last of the rank's partners.
    who : ndarray
        That partner, the late sender; -1 without partners.
    """

    iterations: NDArray[np.int64]
    begin_s: NDArray[Any]
    start_s: NDArray[Any]
    end_s: NDArray[Any]
    wait_s: NDArray[Any]
    last_s: NDArray[Any]
    who: NDArray[np.int64]

    @cached_property
    def waiting_s(self) -> NDArray[Any]:
        """Part of each communication's final wait before the last partner takes part."""
        before = np.minimum(self.last_s, self.end_s) - (self.end_s - self.wait_s)
        return np.nan_to_num(np.clip(before, 0.0, self.wait_s))


def clocked(record: RunRecord, source: ClockOrigin | None,
            chosen: NDArray[np.bool_] | None = None) -> Clocked | None:
    """Put the ranks' times on rank 0's clock.

    Parameters
    ----------
    source : ClockOrigin or None
        Gives a rank's partners; without it, all ranks that have a step are partners.
    chosen : ndarray, optional
        [kept] mask of the kept iterations.

    Returns
    -------
    Clocked or None
        None where the record has no times of steps.
    """
    starts, ends, waits, begins = record.start_s, record.end_s, record.wait_s, record.begin_s
    clock = record.clock
    if starts is None or ends is None or waits is None or begins is None or clock is None:
        return None
    numbers = np.arange(record.iterations) if record.kept is None else record.kept
    chosen = np.ones(len(numbers), np.bool_) if chosen is None else chosen
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
        frozen = source.schedule.steps[i] if source else None
        for rank in taking:
            others = [peer for peer in taking if peer != rank]
            if isinstance(frozen, Comm):
                others = list(partners(frozen, rank))
            if others:
                theirs = entered[others, :, i]
                last[rank, :, i] = theirs.max(axis=0)
                who[rank, :, i] = np.array(others)[theirs.argmax(axis=0)]
    return Clocked(numbers[chosen], begin - zero, start, end, waits[:, chosen], last, who)
