"""How many ranks to ask for: parallel efficiency, time and node-hours over numbers of ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hpcpar.machine.model import Machine
from hpcpar.search.candidates import Candidate


@dataclass(frozen=True)
class Scale:
    """A number of ranks in a scaling question.

    Attributes
    ----------
    efficiency : float
        Parallel efficiency: time on one rank (all else equal; in weak scaling, of one rank's share
        of the batch) over ranks times time.
    run_s, node_hours : float
        Of all epochs.
    """

    candidate: Candidate
    ranks: int
    batch: int
    efficiency: float
    run_s: float
    node_hours: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        c = self.candidate
        return {"ranks": self.ranks, "strategy": c.strategy, "batch": self.batch, "iteration_s": c.iteration_s, "fits": c.fits,
                "efficiency": self.efficiency, "run_s": self.run_s, "node_hours": self.node_hours}


def scaling(
    candidates: list[Candidate], samples: int, epochs: float, node_ranks: int, serial_s_per_sample: float
) -> list[Scale]:
    """Efficiency, time and cost of each of some candidates."""
    out = []
    for c in candidates:
        p = c.task
        run = c.iteration_s * samples / p.batch * epochs
        efficiency = serial_s_per_sample * p.batch / (p.ranks * c.iteration_s)
        nodes = math.ceil(p.ranks / node_ranks)
        out.append(Scale(c, p.ranks, p.batch, efficiency, run, nodes * run / 3600))
    return out


def best_ranks(
    scales: list[Scale], *, efficiency: float | None = None, deadline_s: float | None = None, node_hours: float | None = None
) -> Scale | None:
    """The answer to the question of every allocation holder.

    The most ranks with at least this parallel `efficiency`; the cheapest that meet the
    `deadline_s`; the fastest within `node_hours`. Several conditions hold together. None where
    nothing fits.
    """
    fine = [
        s for s in scales
        if s.candidate.fits and (efficiency is None or s.efficiency >= efficiency) and (deadline_s is None or s.run_s <= deadline_s)
        and (node_hours is None or s.node_hours <= node_hours)
    ]
    if not fine:
        return None
    if node_hours is not None or efficiency is not None:
        return min(fine, key=lambda s: s.run_s)
    return min(fine, key=lambda s: (s.node_hours, s.run_s)) if deadline_s is not None else min(fine, key=lambda s: s.run_s)


def node_ranks(machine: Machine) -> int:
    """Ranks of a node: those of the level named ``node``, else one."""
    return next((level.ranks for level in machine.levels if level.name == "node" and level.ranks),
                1)
