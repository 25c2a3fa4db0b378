"""The prediction that a run's record carries: its steps and their timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Span, Timeline
from hpcpar.errors import InputError

if TYPE_CHECKING:  # planning loads no HDF5
    from hpcpar.train.record import RunRecord

Entry = TypeVar("Entry", StepCost, Span)


@dataclass(frozen=True)
class RecordedPrediction:
    """The part of a prediction that reports of a run need."""

    network: str
    machine: str
    strategy: str
    ranks: int
    #: Size of the largest rank's arrays.
    memory_bytes: int
    steps: tuple[StepCost, ...]
    timeline: Timeline[float]


def recorded_prediction(record: RunRecord) -> RecordedPrediction:
    """Reads the prediction in a record.

    Raises
    ------
    InputError
        The prediction lacks something.
    """
    data = record.prediction
    try:
        steps = tuple(_made(StepCost, entry) for entry in data["steps"])
        spans = tuple(_made(Span, entry) for entry in data["steps"])
        waits = tuple(step.exposed_s if step.is_comm else 0.0 for step in steps)
        return RecordedPrediction(data["network"], data["machine"], data["strategy"],
                                  len(record.ranks), data["memory_bytes"], steps,
                                  Timeline(spans, waits, data["iteration_s"]))
    except (KeyError, TypeError) as err:
        raise InputError(f"the prediction in run record {record.path} is not whole "
                         f"({type(err).__name__}: {err}); run again with this hpcpar") from err


def _made(of: type[Entry], data: Mapping[str, Any]) -> Entry:
    return of(**{f.name: data[f.name] for f in fields(of)})
