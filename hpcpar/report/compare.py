"""Simulated against measured: per run, per phase and per layer.

The measured time of an iteration is the largest over ranks, and of these the median over the iterations after the warm-up. That
of a step likewise: the largest over ranks in each iteration, then the median. Phases and layers are sums over steps, so they may
exceed the iteration, where different ranks are the slowest in different steps. Communication means exposed communication: what
compute does not hide.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.schedule.steps import Phase
from hpcpar.train.record import RunRecord, StepInfo

PHASES = tuple(phase.value for phase in Phase)
#: What a phase or layer is divided into.
PARTS = ("compute", "communication")

_KINDS = {"compute": "compute", "comm": "communication"}


@dataclass
class Times:
    """A predicted (None where there is no prediction) and a measured time."""

    measured_s: float = 0.0
    predicted_s: float | None = None

    @property
    def accuracy(self) -> float | None:
        """ParaDL's accuracy, 1 - abs(projected - measured) / measured; below 0 where the projection is off by more than all."""
        if self.predicted_s is None or not self.measured_s > 0:
            return None
        return 1 - abs(self.predicted_s - self.measured_s) / self.measured_s

    def predict(self, seconds: float) -> None:
        """Add to the prediction."""
        self.predicted_s = (self.predicted_s or 0.0) + seconds

    def to_json(self) -> dict[str, float | None]:
        return {"predicted_s": self.predicted_s, "measured_s": self.measured_s, "accuracy": self.accuracy}


#: Times by part (`PARTS`).
Split = dict[str, Times]


@dataclass
class Row:
    """The comparison of one run.

    Attributes
    ----------
    iteration, epoch : Times
        Of one iteration and of one epoch (`batches_per_epoch` iterations; None where the number is not known).
    phases, layers : dict
        Split times by phase (in the order of an iteration) and by layer (in the order of the schedule).
    loss : ndarray
        [iterations]
    """

    path: str
    network: str
    strategy: str
    ranks: int
    batch: int
    iterations: int
    compared: int
    batches_per_epoch: int | None
    iteration: Times
    epoch: Times | None
    phases: dict[str, Split] = field(default_factory=dict)
    layers: dict[str, Split] = field(default_factory=dict)
    loss: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    test_accuracy: float | None = None
    test_loss: float | None = None

    @property
    def name(self) -> str:
        """A short name: the strategy and the ranks."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    @property
    def rest_s(self) -> float:
        """The iteration less its steps: what lies between them, and the difference of a median from a mean."""
        return self.iteration.measured_s - sum(t.measured_s for split in self.phases.values() for t in split.values())


def step_seconds(record: RunRecord) -> NDArray[np.float64]:
    """Measured time of every step, [steps], such that the steps of layers on the same ranks add up to their time in an iteration.

    In each iteration the rank that computes longest counts, as in the prediction: the others wait for it. Where layers live on some
    ranks only (stages of a pipeline), that is the longest of those ranks, for each set of them; of movements between them, where none
    computes, the rank that waits longest. Then the mean over the iterations compared, without the tenth that took longest and the
    tenth that took shortest.
    """
    if not record.steps:
        return np.zeros(0)
    seconds = record.seconds[:, record.measured].astype(np.float64)
    computes = np.array([step.kind == "compute" for step in record.steps])
    taking_part = seconds.any(axis=1)
    chosen = np.zeros(seconds.shape[1:])
    for ranks in np.unique(taking_part, axis=1).T:
        here = (taking_part == ranks[:, None]).all(axis=0)
        if (here & computes).any():
            busiest = seconds[:, :, here & computes].sum(axis=2).argmax(axis=0)
            chosen[:, here] = seconds[:, :, here][busiest, np.arange(len(busiest))]
        else:
            chosen[:, here] = seconds[:, :, here].max(axis=0)
    order = np.argsort(record.iteration_s[:, record.measured].max(axis=0), kind="stable")
    cut = len(order) // 10
    return chosen[order[cut:len(order) - cut]].mean(axis=0)


def _number(data: Any, *names: str) -> float | None:
    """The first of the entries that is there and is a number."""
    for name in names:
        value = data.get(name) if isinstance(data, dict) else None
        if isinstance(value, int | float):
            return float(value)
    return None


def _list(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = data.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _split() -> Split:
    return {part: Times() for part in PARTS}


def _batches(record: RunRecord) -> int | None:
    """Iterations of an epoch: of the data that the run had, else of those that the prediction took."""
    batch = int(_number(record.plan, "batch") or 0)
    if record.samples and batch:
        return max(1, record.samples // batch)
    epoch, iteration = _number(record.prediction, "epoch_s"), _number(record.prediction, "iteration_s")
    return max(1, round(epoch / iteration)) if epoch and iteration else None


def _place(step: dict[str, Any], known: Sequence[StepInfo]) -> tuple[str, str, str] | None:
    """Kind, phase and layer of a predicted step: its own entries, or those of the recorded step of its label (and index)."""
    if {"kind", "phase", "layer"} <= set(step):
        return str(step["kind"]), str(step["phase"]), str(step["layer"])
    info = next((s for s in known if s.label == step.get("label")), None)
    index = step.get("index")
    if isinstance(index, int) and 0 <= index < len(known) and step.get("label", known[index].label) == known[index].label:
        info = known[index]
    return (info.kind, info.phase, info.layer) if info else None


def _fill(split: Split | None, entry: Any) -> None:
    """Predicted sums of a phase or layer, where there are no steps; all communication where what is exposed is not known."""
    for part, names in (("compute", ("compute_s",)), ("communication", ("exposed_communication_s", "communication_s"))):
        seconds = _number(entry, *names)
        if split is not None and seconds is not None:
            split[part].predict(seconds)


def _predict(row: Row, prediction: dict[str, Any], known: Sequence[StepInfo]) -> None:
    """Fill in the predicted times of phases and layers; `known` are the recorded steps."""
    steps = _list(prediction, "steps")
    for step in steps:
        place = _place(step, known)
        if place is None:
            continue
        kind, phase, layer = place
        part = _KINDS.get(kind, "compute")
        # in all micro-batches of an iteration: what is exposed of a communication, and all of a compute step
        seconds = _number(step, "exposed_s", "seconds")
        if seconds is None:
            continue
        row.phases.setdefault(phase, _split())[part].predict(seconds)
        row.layers.setdefault(layer, _split())[part].predict(seconds)
    if steps:  # what is predicted to have no step takes no time
        for split in (*row.phases.values(), *row.layers.values()):
            for times in split.values():
                times.predict(0.0)
        return
    phases = prediction.get("phases")
    for name, entry in phases.items() if isinstance(phases, dict) else ():
        _fill(row.phases.get(name), entry)
    for entry in _list(prediction, "layers"):
        _fill(row.layers.get(str(entry.get("name"))), entry)


def _last(values: NDArray[Any] | None) -> float | None:
    """The last that was measured."""
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def compare_one(record: RunRecord) -> Row:
    """The comparison of one run."""
    iteration_s = record.iteration_s[:, record.measured].max(axis=0)
    iteration = Times(float(np.median(iteration_s)), _number(record.prediction, "iteration_s"))
    batches = _batches(record)
    epoch = None
    if batches is not None:
        epoch = Times(iteration.measured_s * batches, None if iteration.predicted_s is None else iteration.predicted_s * batches)
    network = record.plan.get("network")
    row = Row(path=record.path, network=str(network.get("name", "")) if isinstance(network, dict) else str(network or ""),
              strategy=str(record.plan.get("strategy", "")), ranks=len(record.ranks), batch=int(_number(record.plan, "batch") or 0),
              iterations=record.iterations, compared=len(iteration_s), batches_per_epoch=batches, iteration=iteration, epoch=epoch,
              phases={phase: _split() for phase in PHASES}, loss=record.loss, test_accuracy=_last(record.test_accuracy),
              test_loss=_last(record.test_loss))
    for step, seconds in zip(record.steps, step_seconds(record), strict=True):
        part = _KINDS[step.kind]
        row.phases.setdefault(step.phase, _split())[part].measured_s += float(seconds)
        row.layers.setdefault(step.layer, _split())[part].measured_s += float(seconds)
    _predict(row, record.prediction, record.steps)
    return row


def compare(records: Iterable[RunRecord]) -> list[Row]:
    """The comparison of every run, in the order given."""
    return [compare_one(record) for record in records]


def mean_accuracy(rows: Sequence[Row]) -> float | None:
    """Mean accuracy of the iteration (or epoch: they are in proportion) over the runs that have a prediction."""
    known = [a for a in (row.iteration.accuracy for row in rows) if a is not None]
    return sum(known) / len(known) if known else None


def _splits(splits: dict[str, Split]) -> dict[str, dict[str, dict[str, float | None]]]:
    return {name: {part: times.to_json() for part, times in split.items()} for name, split in splits.items()}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def row_to_json(row: Row) -> dict[str, Any]:
    """A row as JSON data."""
    return {
        "file": os.path.basename(row.path),
        "network": row.network,
        "strategy": row.strategy,
        "ranks": row.ranks,
        "batch": row.batch,
        "iterations": row.iterations,
        "iterations_compared": row.compared,
        "predicted_iteration_s": row.iteration.predicted_s,
        "measured_iteration_s": row.iteration.measured_s,
        "predicted_epoch_s": row.epoch.predicted_s if row.epoch else None,
        "measured_epoch_s": row.epoch.measured_s if row.epoch else None,
        "accuracy": row.iteration.accuracy,
        "phases": _splits(row.phases),
        "layers": _splits(row.layers),
        "rest_s": row.rest_s,
        "first_loss": _finite(row.loss[0]) if len(row.loss) else None,
        "last_loss": _finite(row.loss[-1]) if len(row.loss) else None,
        "test_accuracy": row.test_accuracy,
        "test_loss": row.test_loss,
    }


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document of ``hpcpar compare --json``."""
    return {"runs": [row_to_json(row) for row in rows], "mean_accuracy": mean_accuracy(rows)}
