"""The plan that suffers least from jitter, among those that are about as fast without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcpar.search.candidates import Candidate
from hpcpar.simulation.noise import Noise
from hpcpar.simulation.simulate import Simulator

#: Predicted time over the fastest's, up to which a plan counts as about as fast.
NEAR = 1.02
#: Iterations that are played of each.
_REPEATS = 100


class Robust(NamedTuple):
    """A candidate, and the 95th percentile of its iterations under jitter."""

    candidate: Candidate
    slow_s: float


def by_robustness(candidates: Sequence[Candidate], jitter: float) -> list[Robust]:
    """The candidates near the first, the one with the least 95th percentile first."""
    best = candidates[0]
    near = [c for c in candidates
            if c.fits == best.fits and c.iteration_s <= NEAR * best.iteration_s]
    found = []
    for each in near:
        each.task.tell(f"simulating {each.strategy}")
        simulator = Simulator(each.task.network, each.plan, each.task.machine)
        played = simulator.play(Noise(jitter), _REPEATS)
        found.append(Robust(each, float(np.percentile(played.iteration_s, 95))))
    return sorted(found, key=lambda each: each.slow_s)
