"""Every call of a run's collectives and exchanges against its predicted time (ParaDL, Fig 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.calibrate.refine_links import calls_s
from hpcpar.errors import InputError
from hpcpar.report.compare import recorded_prediction
from hpcpar.report.rows import Times
from hpcpar.schedule.steps import Comm
from hpcpar.train.record_with_schedule import with_schedule
from hpcpar.train.run_record import RunRecord

#: Calls that take longer than this multiple of their step's median are outliers.
OUTLIER = 2.0


@dataclass(frozen=True)
class Calls:
    """The calls of one step, one per measured iteration.

    Attributes
    ----------
    sent_bytes : int
        Bytes that the busiest rank sends in a call.
    seconds : ndarray
        [kept] from the start of the last rank to the end of the slowest.
    iterations : ndarray
        [kept] numbers of the iterations.
    """

    phase: str
    label: str
    kind: str
    algorithm: str
    ranks: int
    sent_bytes: int
    predicted_s: float
    seconds: NDArray[Any]
    iterations: NDArray[np.int64]

    @property
    def times(self) -> Times:
        """The median, with quartiles, beside the prediction."""
        low, median, high = map(float, np.percentile(self.seconds, (25, 50, 75)))
        return Times(median, self.predicted_s, low, high)

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))

    @property
    def outliers(self) -> list[int]:
        """Iterations of the outliers, the slowest call first."""
        slow = np.flatnonzero(self.seconds > OUTLIER * self.median_s)
        return [int(i) for i in self.iterations[slow[np.argsort(-self.seconds[slow])]]]

    def to_json(self) -> dict[str, Any]:
        return {"phase": self.phase, "label": self.label, "kind": self.kind,
                "algorithm": self.algorithm, "ranks": self.ranks, "sent_bytes": self.sent_bytes,
                "predicted_s": self.predicted_s, "median_s": self.median_s,
                "worst_s": float(self.seconds.max()), "calls": len(self.seconds),
                "outliers": self.outliers}


def calls_of(record: RunRecord) -> tuple[list[Calls], int]:
    """The calls of a run, and the number of steps left out because computing overlaps them.

    Raises
    ------
    InputError
        The record has no times on one clock, or its schedule is unknown.
    """
    schedule = with_schedule(record).schedule
    timed = calls_s(record, schedule)
    sending = {step.index for step in schedule.comms if record.sent_bytes[:, step.index].any()}
    if not sending:
        raise InputError(f"{record.path}: its ranks send no messages, so there are no calls")
    if record.clock is None or not timed:
        raise InputError(f"{record.path} has no calls to time: computing overlaps all of them; "
                         "run a plan made with --overlap none")
    predicted = recorded_prediction(record).steps
    iterations = np.arange(record.iterations) if record.kept is None else record.kept
    iterations = iterations[iterations >= (record.measured.start or 0)]
    found = []
    for index, seconds in timed.items():
        step = schedule.steps[index]
        assert isinstance(step, Comm)
        ranks = step.group.size if step.group else sum(
            step.concerns(rank) for rank in range(len(record.ranks)))
        found.append(Calls(
            step.phase.value, step.label, step.kind.value, str(step.algorithm), int(ranks),
            int(record.sent_bytes[:, index].max()), predicted[index].seconds, seconds, iterations))
    return found, len(sending - timed.keys())
