"""The simulated timeline that a record carries."""

from __future__ import annotations

from dataclasses import dataclass

from hpcpar.cost.price_plan import StepCost
from hpcpar.cost.timeline.overlap import Span, Timeline
from hpcpar.report.predicted import entries, made, number
from hpcpar.train.record import RunRecord


@dataclass(frozen=True)
class Recorded:
    """What a trace shows of the prediction of a run."""

    network: str
    machine: str
    strategy: str
    ranks: int
    steps: tuple[StepCost, ...]
    timeline: Timeline[float]


def simulated(record: RunRecord) -> Recorded | None:
    """The timeline of a record's prediction; None where it has none, as records of older versions.
    """
    prediction = record.prediction
    total = number(prediction, "iteration_s")
    told = entries(prediction, "steps")
    steps = [step for step in (made(StepCost, entry) for entry in told) if step is not None]
    spans = [span for span in (made(Span, entry) for entry in told) if span is not None]
    if total is None or not told or not len(steps) == len(spans) == len(told):
        return None
    waits = tuple(step.exposed_s if step.is_comm else 0.0 for step in steps)
    network, machine, strategy = (str(prediction.get(name, ""))
                                  for name in ("network", "machine", "strategy"))
    return Recorded(network, machine, strategy, len(record.ranks), tuple(steps),
                    Timeline(tuple(spans), waits, total))
