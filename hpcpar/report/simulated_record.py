"""A simulation as the record of a run: what `compare` and `trace` read of a measured one."""

from __future__ import annotations

import numpy as np

from hpcpar.machine import files
from hpcpar.plan.plan import to_json
from hpcpar.report.tables.simulated import SimulationReport
from hpcpar.simulation.price_plan import price
from hpcpar.train.run_record import SIMULATED, RankInfo, RunRecord, steps_of


def record_of(of: SimulationReport) -> RunRecord:
    """All iterations, and the steps' times of the first one on every rank."""
    machine, each = of.machine, of.played
    ranks, repeats = len(each.last), len(each.iteration_s)
    prediction = price(of.network, of.plan, machine)
    start_s, end_s, step_s = (times.T[:, None] for times in (each.start_s, each.end_s, each.step_s))
    seconds = np.nan_to_num(step_s)
    moves = np.array([step.is_comm for step in prediction.steps])
    node, level = machine.levels[0].ranks or ranks, machine.levels[0].name
    clock = np.zeros((ranks, 2, 3))
    clock[:, 1, 0] = each.iteration_s.sum()
    return RunRecord(
        to_json(of.plan), steps_of(of.schedule),
        [RankInfo(f"{level}{rank // node}", 0, 0, SIMULATED, 0) for rank in range(ranks)],
        seconds, np.broadcast_to(each.iteration_s, (ranks, repeats)), of.sent_bytes.T,
        of.messages.T, np.zeros(repeats), kept=np.zeros(1, np.int64), clock=clock,
        begin_s=np.zeros((ranks, 1)), start_s=start_s, end_s=np.where(moves, end_s, np.nan),
        wait_s=np.where(moves, step_s, np.nan), prediction=prediction.to_json(steps=True),
        machine=files.to_dict(machine), samples=prediction.samples or 0)
