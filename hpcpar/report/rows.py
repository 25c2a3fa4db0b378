"""What a comparison consists of: predicted beside measured times, of a run, its phases, layers and
steps, and the terms that are off.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpar.machine.cores import NodeCores
from hpcpar.schedule.steps import Phase

PHASES = tuple(phase.value for phase in Phase)
#: Of a pipeline, besides its phases: stages wait for each other.
BUBBLE = "bubble"
#: What a phase, layer or step is divided into: communication is what computing does not hide of it,
#: waiting the part of that before the last partner took part (0 where the record does not tell it
#: apart: then communication holds it).
PARTS = ("compute", "communication", "waiting")


@dataclass
class Times:
    """A predicted (None where there is no prediction) and a measured time, with its quartiles over
    the iterations.
    """

    measured_s: float = 0.0
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None

    @property
    def accuracy(self) -> float | None:
        """ParaDL's accuracy, 1 - abs(projected - measured) / measured; below 0 where the projection
        is off by more than all.
        """
        if self.predicted_s is None or not self.measured_s > 0:
            return None
        return 1 - abs(self.predicted_s - self.measured_s) / self.measured_s

    def predict(self, seconds: float) -> None:
        """Add to the prediction."""
        self.predicted_s = (self.predicted_s or 0.0) + seconds

    def to_json(self) -> dict[str, float | None]:
        return {"predicted_s": self.predicted_s, "measured_s": self.measured_s,
                "accuracy": self.accuracy, "low_s": self.low_s, "high_s": self.high_s}


#: Times by part (`PARTS`).
Split = dict[str, Times]


def split() -> Split:
    """An empty one."""
    return {part: Times() for part in PARTS}


def whole(parts: Split) -> Times:
    """All parts together, without quartiles."""
    known = [t.predicted_s for t in parts.values() if t.predicted_s is not None]
    return Times(sum(t.measured_s for t in parts.values()), sum(known) if known else None)


@dataclass(frozen=True)
class TermKind:
    """What kind of step it is.

    Attributes
    ----------
    op, algorithm : str
        What is computed, or the pattern of a communication and how it is done.
    ranks : int or None
        That communicate with each other, where it is known.
    sent_bytes : int
        Sent in an iteration by the rank that sends most.
    times : int
        How often it is done in an iteration (micro-batches, FC passes).
    """

    kind: str
    phase: str
    layer: str
    label: str
    op: str
    algorithm: str = ""
    ranks: int | None = None
    sent_bytes: int = 0
    times: int = 1


@dataclass
class StepRow:
    """The steps of one label in one phase, all micro-batches together."""

    kind: TermKind
    parts: Split = field(default_factory=split)

    @property
    def name(self) -> str:
        """The label, with what tells communications apart."""
        k = self.kind
        facts = (f"{k.ranks} ranks" if k.ranks else "", k.algorithm, f"{k.times} x" if k.times > 1
                 else "")
        told = ", ".join(fact for fact in facts if fact)
        return f"{k.label} ({told})" if told else k.label

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self.kind) | {part: times.to_json() for part, times in self.parts.items()}


@dataclass(frozen=True)
class Term:
    """A part of an iteration and by how much it was not foreseen; the terms of a run add up to what
    its iteration is off.

    Attributes
    ----------
    cause : str
        ``compute``, ``communication``, ``waiting``, ``bubble``, or ``between`` (what lies between
        the steps).
    what : str
        In words.
    share : float
        Of all deviations, regardless of their sign; negative where it was faster than predicted.
    """

    cause: str
    what: str
    predicted_s: float
    measured_s: float
    share: float = 0.0
    phase: str = ""
    layer: str = ""
    op: str = ""
    algorithm: str = ""
    ranks: int | None = None
    sent_bytes: int = 0
    waited_for: int | None = None

    @property
    def excess_s(self) -> float:
        return self.measured_s - self.predicted_s

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self) | {"excess_s": self.excess_s}


@dataclass
class Row:
    """The comparison of one run.

    Attributes
    ----------
    iteration, epoch : Times
        Of one iteration and of one epoch (`batches_per_epoch` iterations; None where the number is
        not known).
    phases, layers : dict
        Split times by phase (in the order of an iteration) and by layer (in the order of the
        schedule).
    steps : list of StepRow
        In the order of the schedule.
    terms : list of Term
        Largest first; empty where no step is predicted.
    stages : int
        Of a pipeline: its phases and terms are means over so many stages, as these work at the same
        time.
    tells_waiting : bool
        The record tells waiting for other ranks from communicating.
    node : NodeCores
        Ranks and cores of the node with most ranks per core.
    predicted_memory_bytes, memory_bytes : int or None
        Of the largest rank's arrays.
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
    steps: list[StepRow] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    stages: int = 1
    tells_waiting: bool = False
    node: NodeCores = field(default_factory=NodeCores)
    predicted_memory_bytes: int | None = None
    memory_bytes: int | None = None
    loss: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    test_accuracy: float | None = None
    test_loss: float | None = None

    @property
    def name(self) -> str:
        """A short name: the strategy and the ranks."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    @property
    def rest_s(self) -> float:
        """The iteration less its steps: what lies between them, and the difference of a median from
        a mean.
        """
        return self.iteration.measured_s - sum(t.measured_s for parts in self.phases.values()
                                               for t in parts.values())

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "file": os.path.basename(self.path),
            "network": self.network,
            "strategy": self.strategy,
            "ranks": self.ranks,
            "batch": self.batch,
            "iterations": self.iterations,
            "iterations_compared": self.compared,
            "stages": self.stages,
            "tells_waiting": self.tells_waiting,
            "shares_cores": self.node.shared,
            "predicted_iteration_s": self.iteration.predicted_s,
            "measured_iteration_s": self.iteration.measured_s,
            "quartiles_iteration_s": [self.iteration.low_s, self.iteration.high_s],
            "predicted_epoch_s": self.epoch.predicted_s if self.epoch else None,
            "measured_epoch_s": self.epoch.measured_s if self.epoch else None,
            "accuracy": self.iteration.accuracy,
            "predicted_memory_bytes": self.predicted_memory_bytes,
            "memory_bytes": self.memory_bytes,
            "phases": _splits(self.phases),
            "layers": _splits(self.layers),
            "steps": [step.to_json() for step in self.steps],
            "rest_s": self.rest_s,
            "unforeseen": [term.to_json() for term in self.terms],
            "first_loss": _finite(self.loss[0]) if len(self.loss) else None,
            "last_loss": _finite(self.loss[-1]) if len(self.loss) else None,
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
        }


def _splits(splits: dict[str, Split]) -> dict[str, dict[str, dict[str, float | None]]]:
    return {name: {part: times.to_json() for part, times in parts.items()}
            for name, parts in splits.items()}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
