"""Finds the plan that suffers least from jitter, among plans about as fast without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcpar.search.candidates import Candidate
from hpcpar.search.choice import compared
from hpcpar.simulation.noise import Noise
from hpcpar.simulation.simulate import Simulator

#: Plans up to this multiple of the fastest plan's time are simulated.
NEAR = 1.02
#: Number of simulated iterations of each.
_REPEATS = 100


class Robust(NamedTuple):
    """A candidate, and the 95th percentile of its iteration's time under jitter."""

    candidate: Candidate
    slow_s: float


def by_robustness(candidates: Sequence[Candidate], jitter: float) -> list[Robust]:
    """The candidates near the fastest, sorted by the 95th percentile of an iteration's time."""
    best = min(compared(candidates), key=lambda c: c.order)
    near = [c for c in candidates
            if c.fits == best.fits and c.iteration_s <= NEAR * best.iteration_s]
    robust = []
    for c in near:
        c.task.tell(f"simulating {c.strategy}")
        simulation = Simulator(c.task.network, c.plan, c.task.machine).play(Noise(jitter), _REPEATS)
        robust.append(Robust(c, float(np.percentile(simulation.iteration_s, 95))))
    return sorted(robust, key=lambda r: r.slow_s)
