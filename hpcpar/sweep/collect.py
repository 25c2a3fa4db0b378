"""Collects finished cases into the points of the report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hpcpar.errors import InputError
from hpcpar.plan import plan as plans
from hpcpar.report.compare import compare_one
from hpcpar.report.rows import BUBBLE
from hpcpar.report.sweep_points import IterationParts, Point
from hpcpar.schedule.steps import Phase
from hpcpar.sweep import folder
from hpcpar.sweep.folder import DONE, FAILED, SAME, SKIPPED, Status
from hpcpar.sweep.study import Case, Study
from hpcpar.train import record_file

#: Percentiles of the iterations that error bars span.
SPREAD = (10, 90)


def finished(study: Study, case: Case, status: Status, why: str = "") -> Status:
    """The status of a case whose launcher has ended.

    The case is done where it left a complete record; else it failed, for the reason `why` or for
    the last line of its log.
    """
    path = study.folder(case)
    code = folder.exit_status(path)
    if code == 0:
        try:
            record_file.read(os.path.join(path, folder.RECORD))
            return replace(status, state=DONE, reason="")
        except InputError as err:
            why = str(err)
    line = folder.last_line(os.path.join(path, folder.LOG))
    if not line and status.log:
        line = folder.last_line(status.log)
    line = line or "it left nothing in its log"
    reason = f"{why}: {line}" if why else f"exit status {code}: {line}"
    return replace(status, state=FAILED, reason=reason)


def points(study: Study, states: Mapping[Case, Status]) -> list[Point]:
    """One point per case."""
    by_name = {case.name: case for case in states}
    out = []
    for case, status in states.items():
        owner = by_name.get(status.same_as) if status.state == SAME else case
        path, planned = study.folder(case), status.state != SKIPPED
        if owner is None:
            raise InputError(f"{path} names '{status.same_as}' as its equal, which is not a "
                             f"case of the study; {folder.AGAIN}")
        ran = states[owner]
        strategy = plans.load(os.path.join(path, folder.PLAN)).strategy if planned else ""
        expected = folder.read_prediction(path)
        batches = None if study.epoch_samples is None else max(
            1, study.epoch_samples // case.batch)
        point = Point(case.name, case.strategy, strategy, case.ranks, case.batch,
                      study.nodes[str(case.ranks)], batches, ran.state, ran.reason, status.same_as,
                      IterationParts.predicted(expected) if expected else None,
                      simulated=study.simulates(case), trust=expected.trust if expected else None,
                      memory_bytes=expected.memory_bytes if expected else 0)
        if ran.state == DONE:
            point = _measured(point, os.path.join(study.folder(owner), folder.RECORD))
        out.append(point)
    return out


def _measured(point: Point, path: str) -> Point:
    """The point with the times of the record in `path`."""
    run = record_file.read(path)
    row = compare_one(run)
    low, high = (float(np.percentile(run.slowest_s, p)) for p in SPREAD)
    compute = sum(split["compute"].measured_s for split in row.phases.values())
    comm = {phase: sum(t.measured_s for part, t in split.items() if part != "compute")
            for phase, split in row.phases.items()}
    gradient = comm.get(Phase.GRADIENT.value, 0.0)
    bubble = comm.pop(BUBBLE, 0.0)
    other = sum(comm.values()) - gradient
    whole = compute + gradient + other + bubble
    # the iteration is a median, phases are means: their shares add up to the iteration
    scale = row.iteration.measured_s / whole if whole > 0 else 0.0
    measured = IterationParts(row.iteration.measured_s, scale * compute, scale * gradient,
                              scale * other, scale * bubble)
    return replace(point, measured=measured, low_s=low, high_s=high)
