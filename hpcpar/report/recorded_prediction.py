"""The prediction in a run's record: its steps and their timeline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hpcpar.cost.timeline.timeline import Span, Timeline
from hpcpar.io.schema import Bytes, Seconds, convert
from hpcpar.prediction.prediction import StepCost

if TYPE_CHECKING:  # planning does not load HDF5
    from hpcpar.train.run_record import RunRecord

Entry = TypeVar("Entry", StepCost, "Span[float]")


@dataclass(frozen=True)
class RecordedPrediction:
    """The part of a prediction that reports need."""

    network: str
    machine: str
    strategy: str
    ranks: int
    #: Size of the largest rank's arrays.
    memory_bytes: int
    steps: tuple[StepCost, ...]
    timeline: Timeline[float]
    #: 90% interval of an iteration on a calibrated machine.
    interval_s: tuple[float, float] | None


class PredictionHead(msgspec.Struct):
    """The fields of a record's prediction that are read."""

    network: str
    machine: str
    strategy: str
    memory_bytes: Bytes
    iteration_s: Seconds
    steps: list[dict[str, object]]
    iteration_low_s: Seconds | None = None
    iteration_high_s: Seconds | None = None


def recorded_prediction(record: RunRecord) -> RecordedPrediction:
    """Reads and checks the prediction in a record."""
    where, remedy = f"the prediction in run record {record.path}", "run again with this hpcpar"
    head = convert(record.prediction, PredictionHead, where, remedy)

    def made(kind: type[Entry], names: Collection[str]) -> tuple[Entry, ...]:
        """An entry with these fields for every step."""
        return tuple(convert({name: entry[name] for name in names if name in entry}, kind,
                             f"{where}, step {i}", remedy) for i, entry in enumerate(head.steps))

    steps = made(StepCost, [f.name for f in fields(StepCost)])
    spans = made(Span[Seconds], [f.name for f in fields(Span)])
    waits = tuple(step.exposed_s if step.is_comm else 0.0 for step in steps)
    low_s, high_s = head.iteration_low_s, head.iteration_high_s
    interval_s = None if low_s is None or high_s is None else (low_s, high_s)
    return RecordedPrediction(head.network, head.machine, head.strategy, len(record.ranks),
                              head.memory_bytes, steps, Timeline(spans, waits, head.iteration_s),
                              interval_s)
