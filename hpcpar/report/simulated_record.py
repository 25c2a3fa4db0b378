"""A simulation as a run record, which `compare` and `trace` read like a measured one."""

from __future__ import annotations

import numpy as np

from hpcpar.machine import files
from hpcpar.plan.plan import to_json
from hpcpar.prediction.price import price
from hpcpar.report.tables.simulated import SimulationReport
from hpcpar.train.run_record import SIMULATED, RankInfo, RunRecord, steps_of


def record_of(report: SimulationReport) -> RunRecord:
    """A record with all iterations, and the first iteration's step times on every rank."""
    machine, played = report.machine, report.played
    ranks, repeats = len(played.last), len(played.iteration_s)
    prediction = price(report.network, report.plan, machine)
    start_s, end_s, step_s = (times.T[:, None] for times in (
        played.start_s, played.end_s, played.step_s))
    seconds = np.nan_to_num(step_s)
    moves = np.array([step.is_comm for step in prediction.steps])
    node, level = machine.levels[0].ranks or ranks, machine.levels[0].name
    clock = np.zeros((ranks, 2, 3))
    clock[:, 1, 0] = played.iteration_s.sum()
    return RunRecord(
        to_json(report.plan), steps_of(report.schedule),
        [RankInfo(f"{level}{rank // node}", 0, 0, SIMULATED, 0) for rank in range(ranks)],
        seconds, np.broadcast_to(played.iteration_s, (ranks, repeats)), report.sent_bytes.T,
        report.messages.T, np.zeros(repeats), kept=np.zeros(1, np.int64), clock=clock,
        begin_s=np.zeros((ranks, 1)), start_s=start_s, end_s=np.where(moves, end_s, np.nan),
        wait_s=np.where(moves, step_s, np.nan), prediction=prediction.to_json(steps=True),
        machine=files.to_dict(machine), samples=prediction.samples or 0)
