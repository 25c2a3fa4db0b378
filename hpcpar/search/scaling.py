"""Decides parallel efficiency, training time and node-hours by number of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hpcpar.cost.ratios import Ratio, speedup
from hpcpar.errors import InputError
from hpcpar.machine.model import Machine
from hpcpar.search.candidates import Candidate
from hpcpar.search.choice import simplicity, sized, times_as_fast


def weak_batch(share: int | Fraction, ranks: int) -> int:
    """The mini-batch for a number of ranks in weak scaling.

    Parameters
    ----------
    share : int or Fraction
        Samples per rank; below 1 if several ranks share a sample.

    Raises
    ------
    InputError
        The batch is not a whole number of samples.
    """
    batch = share * ranks
    if batch.denominator > 1:
        raise InputError(f"{share} samples on each of {ranks} ranks are not a whole batch; use "
                         f"multiples of {share.denominator} ranks")
    return batch.numerator


@dataclass(frozen=True)
class Scale:
    """A candidate on its number of ranks.

    Attributes
    ----------
    of_one : Ratio
        Samples per second of each rank, relative to a single rank's: the parallel efficiency. In
        weak scaling, the single rank computes one rank's share of the batch.
    run_s, node_hours : float or None
        Time and cost of all epochs; None if their size is unknown.
    """

    candidate: Candidate
    ranks: int
    batch: int
    of_one: Ratio
    run_s: float | None
    node_hours: float | None

    @property
    def efficiency(self) -> float:
        """Parallel efficiency."""
        return self.of_one.value

    @property
    def sample_s(self) -> float:
        """Time of an iteration per sample."""
        return self.candidate.iteration_s / self.batch

    def to_json(self) -> dict[str, Any]:
        """The scale as JSON data."""
        c = self.candidate
        return {"ranks": self.ranks, "strategy": c.strategy, "batch": self.batch,
                "iteration_s": c.iteration_s, "fits": c.fits,
                **self.of_one.to_json("efficiency"),
                "run_s": self.run_s, "node_hours": self.node_hours}


def scaling(candidates: list[Candidate], samples: int | None, epochs: float,
            serial: Candidate) -> list[Scale]:
    """Efficiency, time and cost of every candidate, relative to a single rank's.

    `samples` is the size of an epoch, if known.
    """
    scales = []
    for c in candidates:
        ranks, batch = c.task.ranks, c.task.batch
        run_s = None if samples is None else c.iteration_s * samples / batch * epochs
        of_one = speedup(sized(c), sized(serial)).times(1 / ranks)
        node_hours = None if run_s is None else nodes(c.task.machine, ranks) * run_s / 3600
        scales.append(Scale(c, ranks, batch, of_one, run_s, node_hours))
    return scales


def best_ranks(scales: list[Scale], *, efficiency: float | None = None,
               deadline_s: float | None = None, node_hours: float | None = None) -> Scale | None:
    """The best number of ranks that meets all conditions; None if none meets them.

    The conditions are a least parallel efficiency, a longest training time, and a largest cost. If
    the deadline is the only condition, the cheapest is best; otherwise the fastest, or the fewest
    ranks that are about as fast.
    """
    def meets(s: Scale) -> bool:
        return (s.candidate.fits
                and (efficiency is None or s.efficiency >= efficiency)
                and (deadline_s is None or (s.run_s or 0.0) <= deadline_s)
                and (node_hours is None or (s.node_hours or 0.0) <= node_hours))

    suitable = [s for s in scales if meets(s)]
    only_deadline = deadline_s is not None and efficiency is None and node_hours is None
    if only_deadline:
        return min(suitable, key=lambda s: (s.node_hours or 0.0, s.sample_s), default=None)
    fastest = min(suitable, key=lambda s: s.sample_s, default=None)
    equal = [s for s in suitable if fastest is not None and (
        s is fastest or times_as_fast(s.candidate, fastest.candidate).as_good)]
    return min(equal, key=lambda s: simplicity(s.candidate), default=None)


def nodes(machine: Machine, ranks: int) -> int:
    """Number of nodes that `ranks` ranks occupy."""
    return math.ceil(ranks / (machine.ranks_of_node or ranks))
