"""Messages and bytes of a plan's ranks: exactly those that a run records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.schedule.freeze import Entry, frozen_movement
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.sent_bytes import Sent, sent

#: On up to this many ranks each is looked at; on more, the busiest rank is estimated step by step.
MOST_RANKS = 1024


@dataclass(frozen=True)
class RankTraffic:
    """Traffic of the rank that sends most.

    Attributes
    ----------
    n_bytes : int
        In an iteration.
    of_layer : dict
        Bytes in an iteration, by layer.
    of_step : list of (int, int)
        Messages and bytes of each entry; zeros for computations.
    """

    n_bytes: int
    of_layer: dict[str, int]
    of_step: list[tuple[int, int]]


def rank_traffic(entries: Sequence[Entry], ranks: int) -> RankTraffic:
    """The traffic of a single plan's list of steps."""
    known: dict[Hashable, Sent] = {}
    by_layer: dict[str, NDArray[np.int64]] = defaultdict(lambda: np.zeros(ranks, np.int64))
    of_step = []
    for entry in entries:
        step = entry.step
        if not isinstance(step, Move):
            of_step.append((0, 0))
            continue
        key = (step.key, step.phase, step.root)
        if key not in known:
            known[key] = sent(frozen_movement(step), ranks)
        found = known[key]
        by_layer[step.layer] += found.n_bytes
        of_step.append((int(found.messages.max()), int(found.n_bytes.max())))
    total = sum(by_layer.values(), np.zeros(ranks, np.int64))
    return RankTraffic(int(total.max()), {name: int(n.max()) for name, n in by_layer.items()},
                       of_step)
