"""The points of a scaling study: predicted and measured times, speedup, efficiency and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcpar.cost import ratios
from hpcpar.cost.ratios import Ratio, Sized
from hpcpar.cost.trust import Trust
from hpcpar.prediction.prediction import Prediction, PredictionFile
from hpcpar.report.rows import Times

#: The two sides of every point.
SIDES = ("predicted", "measured")


@dataclass(frozen=True)
class IterationParts:
    """An iteration and the parts (s) that add up to it.

    A measured iteration is the median, split by the parts' mean shares.
    """

    iteration_s: float
    compute_s: float
    #: Exposed communication of gradients, and of everything else.
    gradient_s: float
    other_s: float
    bubble_s: float = 0.0

    @classmethod
    def predicted(cls, p: Prediction | PredictionFile) -> IterationParts:
        """The parts of a predicted iteration."""
        return cls(p.iteration_s, p.compute_s, p.gradient_s,
                   p.exposed_communication_s - p.gradient_s, p.bubble_s)


@dataclass(frozen=True)
class Point:
    """One case of the study."""

    case: str
    #: The requested strategy, and the plan's (empty without a plan), which differ for ``auto``.
    strategy: str
    chosen: str
    ranks: int
    batch: int
    nodes: int
    #: Iterations of an epoch; None if its size is unknown.
    batches: float | None
    #: One of `hpcpar.sweep.folder.STATES`, and the reason for a skip or failure.
    state: str
    reason: str = ""
    #: The case that runs the same plan.
    same_as: str = ""
    predicted: IterationParts | None = None
    measured: IterationParts | None = None
    #: 10th and 90th percentile of the measured iterations.
    low_s: float = 0.0
    high_s: float = 0.0
    #: The measured side is a simulation.
    simulated: bool = False
    #: The interval of the predicted iteration; None in a sweep of an earlier version.
    trust: Trust | None = None
    #: Arrays of the largest rank; 0 where unknown.
    memory_bytes: int = 0

    def side(self, name: str) -> IterationParts | None:
        """`predicted` or `measured`."""
        return self.predicted if name == "predicted" else self.measured

    @property
    def known(self) -> str:
        """``measured`` where the point was measured, else ``predicted``."""
        return "measured" if self.measured else "predicted"

    @property
    def sized(self) -> Sized | None:
        """The prediction by its size; None without an interval."""
        if self.predicted is None or self.trust is None:
            return None
        return Sized(self.ranks, self.batch, self.predicted.iteration_s, self.trust.ratios)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the predicted iteration, as ParaDL defines it."""
        if self.predicted is None or self.measured is None or self.simulated:
            return None
        return Times(self.measured.iteration_s, self.predicted.iteration_s).accuracy

    def epoch_s(self, side: str) -> float | None:
        """Time of an epoch."""
        parts, batches = self.side(side), self.batches
        return None if parts is None or batches is None else parts.iteration_s * batches

    def node_hours(self, side: str) -> float | None:
        """Cost of an epoch."""
        seconds = self.epoch_s(side)
        return None if seconds is None else self.nodes * seconds / 3600


def base(points: Sequence[Point], side: str) -> Point | None:
    """The reference of speedups: the fastest point on the smallest number of ranks."""
    known = [(p.ranks, parts.iteration_s, i) for i, p in enumerate(points)
             for parts in [p.side(side)] if parts is not None]
    return points[min(known)[-1]] if known else None


def speedup(point: Point, over: Point | None, side: str) -> float | None:
    """Samples per second relative to the base."""
    ours, theirs = point.side(side), over.side(side) if over else None
    if ours is None or theirs is None or over is None:
        return None
    return (point.batch / ours.iteration_s) / (over.batch / theirs.iteration_s)


def efficiency(point: Point, over: Point | None, side: str) -> float | None:
    """Parallel efficiency: the speedup over the ratio of ranks."""
    gain = speedup(point, over, side)
    return None if gain is None or over is None else gain * over.ranks / point.ranks


def predicted_speedup(point: Point, over: Point | None) -> Ratio | None:
    """The predicted `speedup` with its 90% interval; None in a sweep of an earlier version."""
    if over is None or point.sized is None or over.sized is None:
        return None
    return ratios.speedup(point.sized, over.sized)


def predicted_efficiency(point: Point, over: Point | None) -> Ratio | None:
    """The predicted `efficiency` with its 90% interval, as `predicted_speedup`."""
    gain = predicted_speedup(point, over)
    return None if gain is None or over is None else gain.times(over.ranks / point.ranks)


def mean_accuracy(points: Sequence[Point]) -> float | None:
    """Mean accuracy; cases that share a run count once."""
    known = [p.accuracy for p in points if p.accuracy is not None and not p.same_as]
    return sum(known) / len(known) if known else None


def _point_json(p: Point, over: dict[str, Point | None]) -> dict[str, Any]:
    names = ("case", "strategy", "chosen", "ranks", "batch", "nodes", "batches", "state", "reason",
             "same_as", "accuracy", "simulated", "memory_bytes")
    out: dict[str, Any] = {name: getattr(p, name) for name in names}
    for side in SIDES:
        parts = p.side(side)
        out[side] = None if parts is None else {
            "iteration_s": parts.iteration_s, "epoch_s": p.epoch_s(side),
            "compute_s": parts.compute_s, "gradient_s": parts.gradient_s,
            "other_communication_s": parts.other_s, "bubble_s": parts.bubble_s,
            "speedup": speedup(p, over[side], side), "efficiency": efficiency(p, over[side], side),
            "node_hours": p.node_hours(side)}
    if p.trust is not None and p.predicted is not None:
        out["predicted"] |= p.trust.to_json(p.predicted.iteration_s)
        gain = predicted_speedup(p, over["predicted"])
        share = predicted_efficiency(p, over["predicted"])
        out["predicted"] |= gain.to_json("speedup") if gain else {}
        out["predicted"] |= share.to_json("efficiency") if share else {}
    if p.measured is not None:
        out["measured"] |= {"iteration_p10_s": p.low_s, "iteration_p90_s": p.high_s}
    return out


def to_json(points: Sequence[Point]) -> dict[str, Any]:
    """The points and the bases of their speedups as plain data."""
    over = {side: base(points, side) for side in SIDES}
    return {
        "points": [_point_json(p, over) for p in points], "mean_accuracy": mean_accuracy(points),
        "speedup_over": {side: p.case if p else None for side, p in over.items()},
    }
