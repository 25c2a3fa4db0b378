"""Messages and bytes that the ranks of a plan send, exactly as a run records them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.schedule.freeze import Entry, frozen_movement
from hpcpar.schedule.outline_steps import Move
from hpcpar.schedule.sent_bytes import Sent, sent

#: Up to this size the traffic of every rank is counted; beyond, the busiest rank is estimated step
#: by step.
MOST_RANKS = 1024


@dataclass(frozen=True)
class RankTraffic:
    """Traffic of the busiest sender, which may differ between layers and steps.

    It has the bytes of an iteration (`n_bytes`), the bytes by layer, and messages and bytes by
    entry (zeros for computation).
    """

    n_bytes: int
    of_layer: dict[str, int]
    of_step: list[tuple[int, int]]


def rank_traffic(entries: Sequence[Entry], ranks: int) -> RankTraffic:
    """The traffic of the steps of a single plan."""
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
        by_layer[step.layer] += known[key].n_bytes
        of_step.append((int(known[key].messages.max()), int(known[key].n_bytes.max())))
    total = sum(by_layer.values(), np.zeros(ranks, np.int64))
    return RankTraffic(int(total.max()), {name: int(n.max()) for name, n in by_layer.items()},
                       of_step)
