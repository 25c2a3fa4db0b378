"""Predicted against measured times of a run, by phase, layer, step and term.

The measured iteration is the slowest rank's median over the iterations after the warm-up. Step
times come from the rank that computes longest, as means over the iterations; phases and layers are
sums over steps. In a pipeline, phases are means over its stages, which work at the same time, and
the bubble is a separate phase. Communication is exposed communication; waiting is the part of it
before the last partner arrives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from hpcpar.io.schema import convert
from hpcpar.prediction.prediction import PredictionFile
from hpcpar.report.late_senders import between_stages, clocked
from hpcpar.report.measured import busiest, computing, measure, stage_by_stage, view, waited
from hpcpar.report.rows import BUBBLE, OUTSIDE, PHASES, Row, StepRow, TermKind, Times, split
from hpcpar.report.terms import terms
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Comm
from hpcpar.train.record_with_schedule import RecordWithSchedule
from hpcpar.train.run_record import RunRecord


def recorded_prediction(record: RunRecord) -> PredictionFile:
    """Reads and checks the prediction in a record."""
    where = f"the prediction in run record {record.path}"
    found = convert(record.prediction, PredictionFile, where, "run again with this hpcpar")
    return structs.replace(found, ranks=len(record.ranks))


def compare_one(record: RunRecord) -> Row:
    """Compares one run with its prediction."""
    prediction = recorded_prediction(record)
    low, median, high = map(float, np.percentile(record.slowest_s, (25, 50, 75)))
    iteration = Times(median, prediction.total_s, low, high)
    row = Row(record, prediction.network, prediction.strategy, prediction.ranks, iteration,
              prediction.memory_bytes, prediction.interval_s)
    times = clocked(record, record.measured.start)
    row.tells_waiting = len(times.iterations) > 0
    computes, none = computing(record), np.zeros(len(record.steps), np.bool_)
    one = [view(record, busiest(record), times)]
    views, bubble = one, none
    stages = firsts(times.run.network, times.run.plan) if times.run else []
    if times.run is not None and row.tells_waiting and len(stages) > 1:
        row.stages = len(stages)
        views = [view(record, ranks, times) for ranks in stage_by_stage(record, stages)]
        bubble = np.array([between_stages(times.run, stages, i) for i in range(len(record.steps))])
    for phase in dict.fromkeys((*PHASES, *(s.phase for s in record.steps))):
        members = np.array([s.phase == phase for s in record.steps])
        row.phases[phase] = measure(views, members, computes, bubble)
    for layer in dict.fromkeys(s.layer for s in record.steps):
        members = np.array([s.layer == layer for s in record.steps])
        row.layers[layer] = measure(one, members, computes, bubble)
    groups = _groups(record, times.run)
    row.steps = [StepRow(kind, measure(one, members, computes, none)) for kind, members in groups]
    if row.stages > 1:
        row.phases[BUBBLE] = split() | {"waiting": waited(views, bubble)}
    if record.outside_s is not None:
        spent = record.outside_s[record.slowest, record.measured]
        low, median, high = map(float, np.percentile(spent, (25, 50, 75)))
        row.phases[OUTSIDE] = split() | {"compute": Times(median, 0.0, low, high)}
    _predict(row, prediction)
    row.terms = terms(views, groups, prediction.steps, iteration, bubble, computes, row.ranks)
    return row


def _predict(row: Row, prediction: PredictionFile) -> None:
    """Adds predicted times to the phases, layers and steps of a row."""
    by_step = {(s.kind.phase, s.kind.label): s.parts for s in row.steps}
    for step in prediction.steps:
        part = "communication" if step.is_comm else "compute"
        phase = row.phases.setdefault(step.phase, split())
        layer = row.layers.setdefault(step.layer, split())
        phase[part].predicted_s += step.exposed_s / row.stages
        layer[part].predicted_s += step.exposed_s
        if (step.phase, step.label) in by_step:
            by_step[step.phase, step.label][part].predicted_s += step.exposed_s
    if row.stages > 1:
        busy_s = sum(step.exposed_s for step in prediction.steps) / row.stages
        row.phases[BUBBLE]["waiting"].predicted_s = row.iteration.predicted_s - busy_s


def _groups(record: RunRecord,
            run: RecordWithSchedule | None) -> list[tuple[TermKind, NDArray[np.bool_]]]:
    """The record's steps by phase and label: their kind, and a [steps] mask."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, s in enumerate(record.steps):
        places[s.phase, s.label].append(i)
    groups = []
    for members in places.values():
        step = run.schedule.steps[members[0]] if run else None
        ranks = None
        if isinstance(step, Comm):
            concerned = sum(step.concerns(rank) for rank in range(len(record.ranks)))
            ranks = step.group.size if step.group else concerned
        sent_bytes = int(record.sent_bytes[:, members].sum(axis=1).max())
        kind = TermKind(**asdict(record.steps[members[0]]), ranks=ranks, sent_bytes=sent_bytes,
                        times=len(members))
        groups.append((kind, np.isin(np.arange(len(record.steps)), members)))
    return groups


def compare(records: Iterable[RunRecord]) -> list[Row]:
    """Compares every run with its prediction, in the order given."""
    return [compare_one(record) for record in records]


def mean_accuracy(rows: Sequence[Row]) -> float | None:
    """Mean accuracy over the runs, the same for an iteration and an epoch."""
    known = [a for a in (row.iteration.accuracy for row in rows) if a is not None]
    return sum(known) / len(known) if known else None


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document of ``hpcpar compare --json``."""
    return {"runs": [row.to_json() for row in rows], "mean_accuracy": mean_accuracy(rows)}
