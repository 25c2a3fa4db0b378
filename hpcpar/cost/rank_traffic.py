"""Decides the messages and bytes of a plan's busiest sender, exactly as a run records them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.schedule.sent_bytes import Sent, sent
from hpcpar.schedule.steps import Comm, Schedule

#: Up to this size the traffic of every rank is counted; beyond, the busiest rank is estimated step
#: by step.
MOST_RANKS = 1024


@dataclass(frozen=True)
class RankTraffic:
    """Traffic of the busiest sender, which may differ between layers and steps.

    It has the bytes of an iteration (`n_bytes`), the bytes by layer, and messages and bytes by
    step (zeros for computation).
    """

    n_bytes: int
    of_layer: dict[str, int]
    of_step: list[tuple[int, int]]


def rank_traffic(schedule: Schedule) -> RankTraffic:
    """The traffic of the steps of a single plan."""
    ranks = schedule.ranks
    known: dict[Hashable, Sent] = {}
    by_layer: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(ranks, np.int64))
    of_step = []
    for step in schedule.steps:
        if not isinstance(step, Comm):
            of_step.append((0, 0))
            continue
        if step.key not in known:
            known[step.key] = sent(step, ranks)
        sends = known[step.key]
        by_layer[step.layer] += sends.n_bytes
        of_step.append((int(sends.messages.max()), int(sends.n_bytes.max())))
    total = sum(by_layer.values(), np.zeros(ranks, np.int64))
    return RankTraffic(int(total.max()), {name: int(n.max()) for name, n in by_layer.items()},
                       of_step)
