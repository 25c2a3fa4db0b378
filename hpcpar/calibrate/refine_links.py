"""Latency and bandwidth of levels by what runs have recorded of their communication steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.clock_sync import common
from hpcpar.cost.price_family import price_family
from hpcpar.machine.model import Level, Machine
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Phase, Schedule
from hpcpar.train.record_with_schedule import RecordWithSchedule
from hpcpar.train.run_record import RunRecord

#: Fewer communication steps than these say nothing about a level.
_FEWEST = 4
#: Factors stay within this and its inverse; those so near 1 are none.
_MOST, _NEAR = 5.0, 0.01


@dataclass(frozen=True)
class Scaled:
    """By how much a level's numbers changed, and the communication steps that said so."""

    level: str
    alpha: float
    beta: float
    steps: int


def durations(record: RunRecord, schedule: Schedule) -> dict[int, float]:
    """Seconds (median) of the communication steps that everybody waits for at once, by index.

    A step counts from the last partner's start to its end: waiting for late partners is not part of
    it. A record without times on common clocks has none.
    """
    starts, ends, begins, clock = record.start_s, record.end_s, record.begin_s, record.clock
    if starts is None or ends is None or begins is None or clock is None:
        return {}
    numbers = np.arange(record.iterations) if record.kept is None else record.kept
    chosen = numbers >= (record.measured.start or 0)
    local = begins[:, chosen, None]
    out = {}
    for step in schedule.comms:
        if step.phase is Phase.LOSS or step.needed_by > step.index + 1:
            continue
        times = (each[:, chosen, step.index, None] for each in (starts, ends))
        seconds = _duration(step, *(common(local + each, clock)[:, :, 0] for each in times))
        if seconds:
            out[step.index] = seconds
    return out


def _duration(step: Comm, start: NDArray[Any], end: NDArray[Any]) -> float:
    """Seconds of a step from [ranks, kept] times; 0 where nobody sends anything."""
    took = []
    for rank in np.flatnonzero(~np.isnan(start).all(axis=1)):
        ex = exchange(step, int(rank))
        if any(r.sends or r.recvs for r in ex.rounds):
            took.append(end[rank] - start[[*ex.peers, int(rank)]].max(axis=0))
    return float(np.median(np.max(took, axis=0))) if took else 0.0


def scaled(machine: Machine, runs: Sequence[RecordWithSchedule]) -> tuple[Machine, list[Scaled]]:
    """Scales latency and inverse bandwidth of every level to the runs' communication steps, by
    least squares of relative errors.

    Plans with micro-batches or FC passes are left out: steps of several overlap there.
    """
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if run.plan.microbatches > 1 or run.plan.fc_passes > 1:
            continue
        # prices with latencies only, with inverse bandwidths only, and with neither
        latency, bandwidth, neither = (
            price_family(run.network, run.plan,
                         replace(machine, levels=tuple(_times(x, *parts) for x in machine.levels)),
                         training=run.training).steps
            for parts in ((1, 0), (0, 1), (0, 0)))
        for i, seconds in durations(run.record, run.schedule).items():
            rest_s = float(neither[i].seconds)
            left_s = seconds - rest_s
            if left_s > 0:
                found[int(neither[i].level)].append((
                    (float(latency[i].seconds) - rest_s) / left_s,
                    (float(bandwidth[i].seconds) - rest_s) / left_s))
    levels, out = list(machine.levels), []
    for index, parts in sorted(found.items()):
        if len(parts) >= _FEWEST:
            alpha, beta = _factors(np.array(parts))
            levels[index] = _times(levels[index], alpha, beta)
            out.append(Scaled(levels[index].name, alpha, beta, len(parts)))
    return replace(machine, levels=tuple(levels)), out


def _factors(parts: NDArray[np.float64]) -> tuple[float, float]:
    """Factors of latency and of inverse bandwidth.

    Parameters
    ----------
    parts : ndarray
        [steps, 2] share of each in a step's measured seconds.
    """
    (alpha, beta), *_ = np.linalg.lstsq(parts, np.ones(len(parts)), rcond=None)
    if not (1 / _MOST <= alpha <= _MOST and 1 / _MOST <= beta <= _MOST):
        # they cannot be told apart
        alpha = beta = float(np.clip(1.0 / np.median(parts.sum(axis=1)), 1 / _MOST, _MOST))
    alpha, beta = (1.0 if abs(f - 1.0) < _NEAR else float(f) for f in (alpha, beta))
    return alpha, beta


def _times(level: Level, alpha: float, beta: float) -> Level:
    small = None if level.small_alpha_s is None else level.small_alpha_s * alpha
    return replace(level, alpha_s=level.alpha_s * alpha, small_alpha_s=small,
                   beta_s_per_byte=level.beta_s_per_byte * beta)
