"""The comparison of a run: predicted and measured times of phases, layers, steps and terms."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hpcpar.machine.model import NodeCores
from hpcpar.schedule.steps import Phase
from hpcpar.train.class_counts import ClassCounts
from hpcpar.train.run_record import SIMULATED, RunRecord, StepInfo

PHASES = tuple(phase.value for phase in Phase)
#: An extra phase of pipelines, in which stages wait for each other.
BUBBLE = "bubble"
#: An extra phase of PyTorch training loops: time outside the steps.
OUTSIDE = "outside"
#: Parts of a phase, layer or step: compute, exposed communication, and waiting for the last partner
#: (0 if the record does not distinguish it from communication).
PARTS = ("compute", "communication", "waiting")


@dataclass
class Times:
    """A measured and a predicted time, with quartiles of the measured time over iterations."""

    measured_s: float = 0.0
    predicted_s: float = 0.0
    low_s: float | None = None
    high_s: float | None = None

    @property
    def accuracy(self) -> float | None:
        """ParaDL's accuracy, 1 - abs(predicted - measured) / measured, which may be negative."""
        if not self.measured_s > 0:
            return None
        return 1 - abs(self.excess_s) / self.measured_s

    @property
    def excess_s(self) -> float:
        return self.measured_s - self.predicted_s

    def to_json(self) -> dict[str, float | None]:
        return asdict(self) | {"accuracy": self.accuracy}


#: One of `PARTS` -> its times.
Split = dict[str, Times]


def split() -> Split:
    """A split in which all times are 0."""
    return {part: Times() for part in PARTS}


def whole(parts: Split) -> Times:
    """The sum of all parts, without quartiles."""
    return Times(sum(t.measured_s for t in parts.values()),
                 sum(t.predicted_s for t in parts.values()))


@dataclass(frozen=True)
class TermKind(StepInfo):
    """A kind of step, described by its first step; its steps in an iteration are one term."""

    #: Ranks that communicate with each other; None where unknown.
    ranks: int | None = None
    #: Bytes per iteration, of the rank that sends most.
    sent_bytes: int = 0
    #: Occurrences in an iteration (micro-batches, FC passes).
    times: int = 1


@dataclass
class StepRow:
    """The steps of one label in one phase, all micro-batches together."""

    kind: TermKind
    parts: Split

    @property
    def name(self) -> str:
        """The label; for communication with ranks, algorithm and number of occurrences."""
        k = self.kind
        facts = [f"{k.ranks} ranks"] * bool(k.ranks) + [k.algorithm] * bool(k.algorithm)
        facts += [f"{k.times} x"] * (k.times > 1)
        return f"{k.label} ({', '.join(facts)})" if facts else k.label

    def to_json(self) -> dict[str, Any]:
        return asdict(self.kind) | _split_json(self.parts)


@dataclass(frozen=True)
class Term:
    """A part of an iteration; the deviations of a run's terms add up to the run's deviation."""

    #: ``compute``, ``communication``, ``waiting``, ``bubble``, or ``between`` (the steps).
    cause: str
    #: The term in words.
    what: str
    predicted_s: float
    measured_s: float
    #: Share of the sum of absolute deviations; negative if faster than predicted.
    share: float = 0.0
    phase: str = ""
    layer: str = ""
    op: str = ""
    algorithm: str = ""
    ranks: int | None = None
    sent_bytes: int = 0
    #: The late sender that caused most of the waiting.
    waited_for: int | None = None

    @property
    def excess_s(self) -> float:
        return self.measured_s - self.predicted_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"excess_s": self.excess_s}


@dataclass
class Row:
    """The comparison of one run."""

    record: RunRecord
    network: str
    strategy: str
    ranks: int
    iteration: Times
    predicted_memory_bytes: int
    #: 90% interval of the predicted iteration; None for a machine that is not calibrated.
    interval_s: tuple[float, float] | None = None
    #: By phase, in the order of an iteration.
    phases: dict[str, Split] = field(default_factory=dict)
    #: By layer, in the order of the schedule.
    layers: dict[str, Split] = field(default_factory=dict)
    #: In the order of the schedule.
    steps: list[StepRow] = field(default_factory=list)
    #: Largest first.
    terms: list[Term] = field(default_factory=list)
    #: Stages of a pipeline; phases and terms are means over stages, which work at the same time.
    stages: int = 1
    #: Whether the record distinguishes waiting from communication.
    tells_waiting: bool = False

    @property
    def file(self) -> str:
        return os.path.basename(self.record.path)

    @property
    def name(self) -> str:
        """A short name: the strategy and the ranks."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    @property
    def anchor(self) -> str:
        """The measured iteration as a value of ``--measured``; empty for simulations and inference.
        """
        trained = self.record.prediction.get("training", True)
        if self.record.ranks[0].device == SIMULATED or not trained:
            return ""
        plan = self.record.plan
        how = f", strategy {self.strategy}" * (self.strategy != "data" and self.ranks > 1)
        return (f"{self.ranks} rank{'s' * (self.ranks > 1)}, batch {plan['batch']}, network "
                f"{self.network}, {plan.get('precision', 'fp32')}{how}: "
                f"{1e3 * self.iteration.measured_s:.4g} ms")

    @property
    def compared(self) -> int:
        """Number of compared iterations."""
        return len(self.record.slowest_s)

    @property
    def node(self) -> NodeCores:
        """Ranks and cores of the node with most ranks per core."""
        return NodeCores(self.record.node_ranks, self.record.node_cores)

    @property
    def inside(self) -> bool | None:
        """The measured iteration lies in the predicted interval."""
        if self.interval_s is None:
            return None
        return self.interval_s[0] <= self.iteration.measured_s <= self.interval_s[1]

    @property
    def batches_per_epoch(self) -> int | None:
        """Iterations of an epoch; None if the record does not know its samples."""
        if not self.record.samples:
            return None
        return max(1, self.record.samples // int(self.record.plan["batch"]))

    @property
    def epoch(self) -> Times | None:
        """Times of an epoch; None if its size is unknown."""
        count, iteration = self.batches_per_epoch, self.iteration
        if count is None:
            return None
        return Times(iteration.measured_s * count, iteration.predicted_s * count)

    @property
    def memory_bytes(self) -> int | None:
        """Size of the largest rank's arrays."""
        sizes = self.record.memory_bytes
        return None if sizes is None else int(sizes.max())

    @property
    def test_accuracy(self) -> float | None:
        return _last(self.record.test_accuracy)

    @property
    def test_loss(self) -> float | None:
        return _last(self.record.test_loss)

    @property
    def test_pixels(self) -> ClassCounts | None:
        """Held-out pixels by class, from the last epoch that counted them."""
        counts = self.record.test_counts
        known = [] if counts is None else [each for each in counts if each.any()]
        return ClassCounts.of(known[-1] if known else None)

    @property
    def rest_s(self) -> float:
        """The iteration less its steps: time between steps, and median less mean."""
        return self.iteration.measured_s - sum(whole(p).measured_s for p in self.phases.values())

    def to_json(self) -> dict[str, Any]:
        names = ("file", "network", "strategy", "ranks", "stages", "tells_waiting", "rest_s",
                 "predicted_memory_bytes", "memory_bytes", "test_accuracy", "test_loss")
        loss = [float(x) if np.isfinite(x) else None for x in self.record.loss]
        return {name: getattr(self, name) for name in names} | {
            "batch": int(self.record.plan["batch"]),
            "iterations": self.record.iterations,
            "iterations_compared": self.compared,
            "iterations_done": self.record.done,
            "iterations_missing": self.record.first + self.record.missing,
            "shares_cores": self.node.shared,
            "predicted_iteration_s": self.iteration.predicted_s,
            "interval_iteration_s": self.interval_s,
            "inside_interval": self.inside,
            "measured_iteration_s": self.iteration.measured_s,
            "quartiles_iteration_s": [self.iteration.low_s, self.iteration.high_s],
            "predicted_epoch_s": self.epoch and self.epoch.predicted_s,
            "measured_epoch_s": self.epoch and self.epoch.measured_s,
            "accuracy": self.iteration.accuracy,
            "anchor": self.anchor,
            "phases": {name: _split_json(parts) for name, parts in self.phases.items()},
            "layers": {name: _split_json(parts) for name, parts in self.layers.items()},
            "steps": [step.to_json() for step in self.steps],
            "unforeseen": [term.to_json() for term in self.terms],
            "test_pixels": None if self.test_pixels is None else self.test_pixels.to_json(),
            "first_loss": loss[0] if loss else None,
            "last_loss": loss[-1] if loss else None,
        }


def _split_json(parts: Split) -> dict[str, dict[str, float | None]]:
    return {part: times.to_json() for part, times in parts.items()}


def _last(values: Any) -> float | None:
    """The last measured value."""
    known = [] if values is None else values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None
