"""The critical path: the chain of steps that determines the length of an iteration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcpar.cost.network.links import FloatArray
from hpcpar.report.late_senders import partners
from hpcpar.schedule.steps import Comm, Schedule


class PathPiece(NamedTuple):
    """A part of the path: a step on a rank, with its time (s)."""

    step: int
    rank: int
    seconds: float


def critical_path(schedule: Schedule, start_s: FloatArray, end_s: FloatArray) -> list[PathPiece]:
    """The path to the last end, in time order.

    It is followed backwards: from a step to the step that ended last before it on its rank, and
    from a communication to the partner that began it last.

    Parameters
    ----------
    start_s, end_s : ndarray
        [steps, ranks]; NaN if a rank does not take part.
    """
    ends = np.nan_to_num(end_s, nan=-np.inf)
    rank = int(ends.max(axis=0).argmax())
    at_s = float(ends[:, rank].max())
    out: list[PathPiece] = []
    while True:
        before = (ends[:, rank] <= at_s * (1 + 1e-9)) & (start_s[:, rank] < at_s * (1 - 1e-9))
        if not before.any():
            return out[::-1]
        i = int(np.where(before, ends[:, rank], -np.inf).argmax())
        step, who = schedule.steps[i], rank
        if isinstance(step, Comm):
            others = partners(step, rank)
            # if all begin at once, a collective stays on its rank, a message leads to its sender
            taking = (*others, rank) if step.group is None else (rank, *others)
            who = max((r for r in taking if start_s[i, r] < at_s),
                      key=lambda r: float(start_s[i, r]))
        out.append(PathPiece(i, who, at_s - float(start_s[i, who])))
        rank, at_s = who, float(start_s[i, who])
