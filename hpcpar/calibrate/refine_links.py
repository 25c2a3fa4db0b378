"""Latency and bandwidth of levels, refined by the communication times in records of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.comm.clock_sync import common
from hpcpar.cost.price_family import price_family
from hpcpar.machine.model import Machine
from hpcpar.schedule.messages import exchange
from hpcpar.schedule.steps import Comm, Phase, Schedule
from hpcpar.train.record_with_schedule import RecordWithSchedule
from hpcpar.train.run_record import RunRecord

#: Smallest number of communication steps that can refine a level.
_MIN_STEPS = 4
#: Factors are limited to this and its inverse. Factors this close to 1 are ignored.
_MAX_FACTOR, _NEGLIGIBLE = 5.0, 0.01


@dataclass(frozen=True)
class Scaled:
    """Factors of a level's latency and inverse bandwidth, and the number of steps behind them."""

    level: str
    alpha: float
    beta: float
    steps: int


def calls_s(record: RunRecord, schedule: Schedule) -> dict[int, NDArray[Any]]:
    """Times (s) of the communication steps without overlap, by index: [kept].

    A step's time begins when its last partner starts, so it excludes waiting for late partners.
    Empty if the record has no synchronized clocks.
    """
    starts, ends, begins, clock = record.start_s, record.end_s, record.begin_s, record.clock
    if starts is None or ends is None or begins is None or clock is None:
        return {}
    numbers = np.arange(record.iterations) if record.kept is None else record.kept
    chosen = numbers >= (record.measured.start or 0)
    local = begins[:, chosen, None]
    found = {}
    for step in schedule.comms:
        if step.phase is Phase.LOSS or step.needed_by > step.index + 1:
            continue
        times = (array[:, chosen, step.index, None] for array in (starts, ends))
        seconds = _call_s(step, *(common(local + time, clock)[:, :, 0] for time in times))
        if len(seconds):
            found[step.index] = seconds
    return found


def _call_s(step: Comm, start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Durations of a step (s) from times [ranks, kept]; empty if no rank sends a message."""
    by_rank = []
    for rank in np.flatnonzero(~np.isnan(start).all(axis=1)):
        ex = exchange(step, int(rank))
        if any(r.sends or r.recvs for r in ex.rounds):
            by_rank.append(end[rank] - start[[*ex.peers, int(rank)]].max(axis=0))
    return np.max(by_rank, axis=0) if by_rank else np.zeros(0)


def scaled(machine: Machine, runs: Sequence[RecordWithSchedule]) -> tuple[Machine, list[Scaled]]:
    """Scales the latency and inverse bandwidth of every level to match the runs' communication
    steps, by least squares of relative errors.

    Plans with micro-batches or FC passes are left out, because their steps overlap.
    """
    shares: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        if run.plan.microbatches > 1 or run.plan.fc_passes > 1:
            continue
        # Prices from latencies only, from inverse bandwidths only, and from neither.
        latency, bandwidth, neither = (
            price_family(run.network, run.plan,
                         replace(machine, levels=tuple(x.times(*parts) for x in machine.levels)),
                         training=run.training).prices
            for parts in ((1, 0), (0, 1), (0, 0)))
        for i, calls in calls_s(run.record, run.schedule).items():
            other_s = float(neither[i].seconds)
            link_s = float(np.median(calls)) - other_s
            if link_s > 0:
                shares[int(neither[i].level)].append((
                    (float(latency[i].seconds) - other_s) / link_s,
                    (float(bandwidth[i].seconds) - other_s) / link_s))
    levels, changes = list(machine.levels), []
    for index, of_level in sorted(shares.items()):
        if len(of_level) >= _MIN_STEPS:
            alpha, beta = _factors(np.array(of_level))
            levels[index] = levels[index].times(alpha, beta)
            changes.append(Scaled(levels[index].name, alpha, beta, len(of_level)))
    return replace(machine, levels=tuple(levels)), changes


def _factors(shares: NDArray[np.float64]) -> tuple[float, float]:
    """Factors of latency and inverse bandwidth.

    Parameters
    ----------
    shares : ndarray
        [steps, 2] predicted latency and transfer time, over the measured time on links.
    """
    low, high = 1 / _MAX_FACTOR, _MAX_FACTOR
    (alpha, beta), *_ = np.linalg.lstsq(shares, np.ones(len(shares)), rcond=None)
    if not (low <= alpha <= high and low <= beta <= high):
        # The steps cannot distinguish latency from bandwidth: use one factor for both.
        alpha = beta = float(np.clip(1.0 / np.median(shares.sum(axis=1)), low, high))
    alpha, beta = (1.0 if abs(f - 1.0) < _NEGLIGIBLE else float(f) for f in (alpha, beta))
    return alpha, beta
