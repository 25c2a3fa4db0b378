"""Waiting told from communicating: a step cannot be complete before the last of its partners took
part in it.
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
from hpcpar.schedule.steps import Comm, Kind, Phase, Schedule
from hpcpar.train.record import RunRecord, steps_of


@dataclass(frozen=True)
class Origin:
    """What a record's steps come from."""

    network: Network
    plan: Plan
    schedule: Schedule

    @property
    def stages(self) -> list[int]:
        """The first ranks of a pipeline's stages; one where there is no pipeline."""
        return firsts(self.network, self.plan)

    def stage(self, rank: int) -> int:
        """Of a pipeline, the stage that a rank belongs to."""
        return int(np.searchsorted(self.stages, rank, side="right")) - 1

    def between_stages(self, index: int) -> bool:
        """True for a movement from stage to stage, and for telling all of them the loss."""
        step = self.schedule.steps[index]
        if not isinstance(step, Comm) or len(self.stages) == 1:
            return False
        return step.phase is Phase.LOSS or self.stage(int(step.holder.config.first)) != self.stage(
            int(step.wanter.config.first))


def origin(record: RunRecord) -> Origin | None:
    """Lower the record's plan again; None where that is not possible (a network that is not at
    hand) or gives other steps.
    """
    try:
        plan = plans.from_json(record.plan, record.path)
        network = plan.network.build()
        for training in (True, False):
            schedule = schedule_for(network, plan, training)
            if steps_of(schedule) == record.steps:
                return Origin(network, plan, schedule)
    except InputError:
        return None
    return None


def partners(step: Comm, rank: int) -> tuple[int, ...]:
    """Ranks without which `rank` cannot complete a step: the others of a collective, or those that
    it exchanges messages with.
    """
    ex = exchange(step, rank)
    if step.algorithm == "mpi" or (step.group is not None and step.kind not in (Kind.REDUCE, Kind.BROADCAST)):
        return tuple(peer for peer in ex.peers if peer != rank)
    return tuple(sorted({ex.peers[m.peer] for r in ex.rounds for m in (*r.recvs, *r.sends)}))


@dataclass(frozen=True)
class Clocked:
    """The steps of the kept iterations on one clock, [ranks, kept, steps] (s after the first of
    them); NaN where a rank has no part.

    Attributes
    ----------
    iterations : ndarray
        [kept] numbers.
    begin_s : ndarray
        [ranks, kept] beginning of the iterations.
    last_s : ndarray
        Of a communication, when the last of the rank's partners took part.
    who : ndarray
        That partner; -1 without partners.
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
        """Of the wait at a communication's end, what lies before the last partner took part; 0
        elsewhere.
        """
        before = np.minimum(self.last_s, self.end_s) - (self.end_s - self.wait_s)
        return np.nan_to_num(np.clip(before, 0.0, self.wait_s))


def clocked(record: RunRecord, source: Origin | None,
            chosen: NDArray[np.bool_] | None = None) -> Clocked | None:
    """Put the ranks' times on rank 0's clock.

    Parameters
    ----------
    source : Origin or None
        Tells a rank's partners; without it, all who have a step are each other's.
    chosen : ndarray, optional
        [kept] which of the kept iterations.

    Returns
    -------
    Clocked or None
        None where the record has no times of steps.
    """
    if record.start_s is None or record.end_s is None or record.wait_s is None or record.begin_s is None or record.clock is None:
        return None
    numbers = np.arange(record.iterations) if record.kept is None else record.kept
    chosen = np.ones(len(numbers), np.bool_) if chosen is None else chosen
    local = record.begin_s[:, chosen]
    begin = common(local, record.clock)
    zero = begin.min() if begin.size else 0.0
    start, end = (common(local[:, :, None] + each[:, chosen], record.clock) - zero
                  for each in (record.start_s, record.end_s))
    last, who = np.full(start.shape, np.nan), np.full(start.shape, -1)
    entered = np.nan_to_num(start, nan=-np.inf)
    for i, step in enumerate(record.steps):
        if step.kind != "comm":
            continue
        taking = [r for r in range(len(start)) if not np.isnan(start[r, :, i]).all()]
        for r in taking:
            frozen = source.schedule.steps[i] if source else None
            others = partners(frozen, r) if isinstance(frozen, Comm) else tuple(p for p in taking if p != r)
            if others:
                theirs = entered[list(others), :, i]
                last[r, :, i], who[r, :,
                                   i] = theirs.max(axis=0), np.array(others)[theirs.argmax(axis=0)]
    return Clocked(numbers[chosen], begin - zero, start, end, record.wait_s[:, chosen], last, who)
