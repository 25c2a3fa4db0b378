"""Runs that never took place: a plan's schedule played on ranks whose times and clocks are known,
as a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcpar.cost.network.algorithm_choice import schedule_for
from hpcpar.machine import files
from hpcpar.plan.plan import NetworkSpec, Plan, make_plan, to_json
from hpcpar.prediction.price import price
from hpcpar.report.late_senders import partners
from hpcpar.schedule.messages import counts
from hpcpar.schedule.steps import Comm, Step
from hpcpar.train.run_record import RankInfo, RunRecord, steps_of

MACHINE = files.load("local")
#: (rank, iteration, step) -> seconds that a step takes, or a communication from when the last
#: partner has begun it.
Lasts = Callable[[int, int, Step], float]


def lenet(strategy: str, ranks: int, batch: int = 16, **options: Any) -> Plan:
    return make_plan(NetworkSpec("lenet5", (1, 8, 8), 10), strategy, ranks, batch,
                     machine=MACHINE, **options)


@dataclass
class Played:
    """A record, and what nobody who has it knows: waiting_s [R, I, S] until the last partner began,
    of what a rank stands still.
    """

    record: RunRecord
    waiting_s: np.ndarray


@dataclass
class _Rank:
    now: float
    open: list[tuple[int, int]] = field(default_factory=list)  # (step that needs it, movement)


def play(
    plan: Plan, lasts: Lasts, iterations: int = 6, ahead_s: float = 3.0, drift: float = 1e-5,
    kept: list[int] | None = None,
    training: bool = True,
) -> Played:
    """Walk the schedule as the executor does; rank r's clock is `ahead_s` * r ahead and gains
    `drift` * r.
    """
    network, ranks = plan.network.build(), plan.ranks
    schedule = schedule_for(network, plan, training)
    shape = (ranks, iterations, len(schedule.steps))
    seconds, start, end, wait = np.zeros(shape), *np.full((3, *shape), np.nan)
    waiting, begin, took = np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape[:2])
    state = [_Rank(1.0) for _ in range(ranks)]

    def stand(r: int, k: int, moves: list[int]) -> None:
        for i in moves:
            step, before = schedule.steps[i], state[r].now
            last = max((start[p, k, i] for p in partners(step, r)), default=start[r, k, i])  # type: ignore[arg-type]
            done = max(before, max(last, start[r, k, i]) + lasts(r, k, step))
            waiting[r, k, i] = max(0.0, last - before)
            wait[r, k, i], end[r, k, i], seconds[r, k,
                                                 i], state[
                r].now = done - before, done, done - before, done

    for k in range(iterations):
        for r in range(ranks):
            begin[r, k] = state[r].now
        for step in (*schedule.steps, None):
            for r in range(ranks):
                index = len(schedule.steps) if step is None else step.index
                stand(r, k, [i for until, i in state[r].open if until <= index])
                state[r].open = [(until, i) for until, i in state[r].open if until > index]
                if isinstance(step, Comm) and step.concerns(r):
                    start[r, k, index] = state[r].now
                    state[r].open.append((step.needed_by, index))
                elif step is not None and not isinstance(step,
                                                         Comm) and _lives(plan, step.layer, r):
                    start[r, k, index] = state[r].now
                    seconds[r, k, index] = lasts(r, k, step)
                    state[r].now += seconds[r, k, index]
        for r in range(ranks):
            took[r, k] = state[r].now - begin[r, k]
    number = np.arange(ranks)
    local = begin + number[:, None] * (ahead_s + drift * begin)
    faster = 1 + drift * number[:, None, None]
    at = np.array([0.0, max(s.now for s in state)])
    ahead = number[:, None] * (ahead_s + drift * at)
    chosen = list(range(iterations)) if kept is None else kept
    done = [[counts(s, r) if isinstance(s, Comm) and s.concerns(r) else None
             for s in schedule.steps] for r in range(ranks)]
    sent, messages = (np.array([[getattr(c, name, 0) for c in row] for row in done])
                      for name in ("sent_bytes", "messages"))
    where = [RankInfo("n", r, 1, "cpu", 1) for r in range(ranks)]
    record = RunRecord(
        to_json(plan), steps_of(schedule), where, seconds.astype("f4"), took, sent, messages,
        np.ones(iterations),
        prediction=price(network, plan, MACHINE, samples=160,
                         training=training).to_json(steps=True), machine=files.to_dict(MACHINE),
        samples=160, path="played.h5", kept=np.array(chosen),
        clock=np.stack([at + ahead, ahead, np.full_like(ahead, 2e-6)], axis=2),
        begin_s=local[:, chosen],
        start_s=((start - begin[:, :, None]) * faster).astype("f4")[:, chosen],
        end_s=((end - begin[:, :, None]) * faster).astype("f4")[:, chosen],
        wait_s=wait.astype("f4")[:, chosen])
    return Played(record, waiting)


def _lives(plan: Plan, layer: str, rank: int) -> bool:
    c = plan.configs[layer]
    return bool(c.first <= rank < c.first + c.ranks)


def predicted(plan: Plan) -> Lasts:
    """Every step takes its predicted time."""
    known = {(s.phase, s.label): s.seconds for s in price(plan.network.build(), plan,
                                                          MACHINE).steps}
    return lambda rank, iteration, step: known[step.phase.value, step.label]
