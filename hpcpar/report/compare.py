"""Simulated against measured: per run, phase, layer and step, and which terms are off.

The measured time of an iteration is the slowest rank's median over the iterations after the
warm-up. Steps are those of the rank that computes longest, the mean over the iterations; phases and
layers are sums over steps. Of a pipeline, phases are means over its stages, which work at the same
time, and the bubble is a phase of its own. Communication means exposed communication: what compute
does not hide; waiting is the part of it before the last partner took part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.cores import NodeCores
from hpcpar.report import terms
from hpcpar.report.late_senders import ClockOrigin, clocked, origin
from hpcpar.report.measured import busiest, computing, measure, stage_by_stage, view, waited
from hpcpar.report.predicted import entries, expected, number
from hpcpar.report.rows import (
    BUBBLE,
    PARTS,
    PHASES,
    Row,
    Split,
    StepRow,
    Term,
    TermKind,
    Times,
    split,
    whole,
)
from hpcpar.schedule.steps import Comm
from hpcpar.train.record import RunRecord

__all__ = [
    "BUBBLE", "PARTS", "PHASES", "Row", "Split", "StepRow", "Term", "TermKind", "Times", "compare",
    "compare_one", "mean_accuracy", "row_to_json", "step_seconds", "to_json", "whole",
]


def step_seconds(record: RunRecord) -> NDArray[np.float64]:
    """Measured time of every step, [steps], such that the steps of layers on the same ranks add up
    to their time in an iteration.

    See `measured.busiest`; the mean over the iterations compared, without the tenth that took
    longest and the tenth that took shortest.
    """
    return view(record, busiest(record), None).mean_s if record.steps else np.zeros(0)


def _batches(record: RunRecord) -> int | None:
    """Iterations of an epoch: of the data that the run had, else of those that the prediction took.
    """
    batch = int(number(record.plan, "batch") or 0)
    if record.samples and batch:
        return max(1, record.samples // batch)
    epoch = number(record.prediction, "epoch_s")
    iteration = number(record.prediction, "iteration_s")
    return max(1, round(epoch / iteration)) if epoch and iteration else None


def _last(values: NDArray[Any] | None) -> float | None:
    """The last that was measured."""
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def compare_one(record: RunRecord) -> Row:
    """The comparison of one run."""
    iteration_s = record.slowest_s
    low, high = np.percentile(iteration_s, (25, 75))
    iteration = Times(float(np.median(iteration_s)), number(record.prediction, "iteration_s"),
                      float(low), float(high))
    batches = _batches(record)
    epoch = None
    if batches is not None:
        epoch = Times(iteration.measured_s * batches, None if iteration.predicted_s is None
                      else iteration.predicted_s * batches)
    network = record.plan.get("network")
    name = network.get("name", "") if isinstance(network, dict) else network or ""
    row = Row(
        path=record.path, network=str(name), strategy=str(record.plan.get("strategy", "")),
        ranks=len(record.ranks), batch=int(number(record.plan, "batch") or 0),
        iterations=record.iterations, compared=len(iteration_s), batches_per_epoch=batches,
        iteration=iteration, epoch=epoch, phases={phase: split() for phase in PHASES},
        node=NodeCores(record.node_ranks, record.node_cores), loss=record.loss,
        test_accuracy=_last(record.test_accuracy), test_loss=_last(record.test_loss),
    )
    predicted = number(record.prediction, "memory_bytes")
    row.predicted_memory_bytes = None if predicted is None else int(predicted)
    row.memory_bytes = None if record.memory_bytes is None else int(record.memory_bytes.max())
    if record.steps:
        _fill(row, record)
    _sums_only(row, record.prediction)
    return row


def _fill(row: Row, record: RunRecord) -> None:
    """Phases, layers, steps and terms."""
    source = origin(record) if record.start_s is not None else None
    numbers = np.arange(record.iterations) if record.kept is None else record.kept
    times = clocked(record, source, numbers >= (record.measured.start or 0))
    times = times if times is not None and len(times.iterations) else None
    row.tells_waiting = times is not None
    computes, none = computing(record), np.zeros(len(record.steps), np.bool_)
    one = [view(record, busiest(record), times)]
    views, bubble = one, none
    if source is not None and times is not None and len(source.stages) > 1:
        row.stages = len(source.stages)
        views = [view(record, ranks, times) for ranks in stage_by_stage(record, source.stages)]
        bubble = np.array([source.between_stages(i) for i in range(len(record.steps))])
    groups = _groups(record, source)
    foreseen = expected(record)
    for phase in dict.fromkeys((*PHASES, *(s.phase for s in record.steps))):
        row.phases[phase] = measure(views, np.array([s.phase == phase for s in record.steps]),
                                    computes, bubble)
    for layer in dict.fromkeys(s.layer for s in record.steps):
        row.layers[layer] = measure(one, np.array([s.layer == layer for s in record.steps]),
                                    computes, bubble)
    row.steps = [StepRow(kind, measure(one, members, computes, none))
                 for kind, members in zip(groups.kinds, groups.members, strict=True)]
    if row.stages > 1:
        row.phases[BUBBLE] = split() | {"waiting": waited(views, bubble)}
    if entries(record.prediction, "steps"):
        by_step = {(s.kind.phase, s.kind.label): s.parts for s in row.steps}
        for e in foreseen:
            row.phases.setdefault(e.phase, split())[e.part].predict(e.seconds / row.stages)
            row.layers.setdefault(e.layer, split())[e.part].predict(e.seconds)
            if (e.phase, e.label) in by_step:
                by_step[e.phase, e.label][e.part].predict(e.seconds)
        for parts in (*row.phases.values(), *row.layers.values(), *by_step.values()):
            for each in parts.values():  # what is predicted to have no step takes no time
                each.predict(0.0)
        if row.iteration.predicted_s is not None:
            if row.stages > 1:
                row.phases[BUBBLE]["waiting"].predict(row.iteration.predicted_s
                                                      - sum(e.seconds for e in foreseen)
                                                      / row.stages)
            row.terms = terms.terms(views, groups, foreseen, row.iteration, bubble, computes,
                                    row.ranks)


def _groups(record: RunRecord, source: ClockOrigin | None) -> terms.TermGroups:
    """The record's steps by phase and label."""
    places: dict[tuple[str, str], list[int]] = {}
    for i, s in enumerate(record.steps):
        places.setdefault((s.phase, s.label), []).append(i)
    kinds, members = [], []
    for found in places.values():
        first = record.steps[found[0]]
        frozen = source.schedule.steps[found[0]] if source else None
        ranks = None
        if isinstance(frozen, Comm):
            ranks = frozen.group.size if frozen.group else sum(frozen.concerns(r)
                                                               for r in range(len(record.ranks)))
        sent = int(record.sent_bytes[:, found].sum(axis=1).max(initial=0))
        kinds.append(TermKind(first.kind, first.phase, first.layer, first.label, first.op,
                          first.algorithm, ranks, sent, len(found)))
        chosen = np.zeros(len(record.steps), np.bool_)
        chosen[found] = True
        members.append(chosen)
    return terms.TermGroups(tuple(kinds), tuple(members))


def _sums_only(row: Row, prediction: dict[str, Any]) -> None:
    """A prediction without steps: sums of phases and layers; all communication where what is
    exposed is not known.
    """
    if entries(prediction, "steps"):
        return
    phases = prediction.get("phases")
    found = [(row.phases.get(name), entry)
             for name, entry in (phases.items() if isinstance(phases, dict) else ())]
    found += [(row.layers.get(str(entry.get("name"))), entry)
              for entry in entries(prediction, "layers")]
    for parts, entry in found:
        for part, names in (("compute", ("compute_s",)),
                            ("communication", ("exposed_communication_s", "communication_s"))):
            seconds = number(entry, *names)
            if parts is not None and seconds is not None:
                parts[part].predict(seconds)


def compare(records: Iterable[RunRecord]) -> list[Row]:
    """The comparison of every run, in the order given."""
    return [compare_one(record) for record in records]


def mean_accuracy(rows: Sequence[Row]) -> float | None:
    """Mean accuracy of the iteration (or epoch: they are in proportion) over the runs that have a
    prediction.
    """
    known = [a for a in (row.iteration.accuracy for row in rows) if a is not None]
    return sum(known) / len(known) if known else None


def row_to_json(row: Row) -> dict[str, Any]:
    """A row as JSON data."""
    return row.to_json()


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document of ``hpcpar compare --json``."""
    return {"runs": [row.to_json() for row in rows], "mean_accuracy": mean_accuracy(rows)}
