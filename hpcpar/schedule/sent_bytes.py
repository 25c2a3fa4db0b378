"""Decides how many messages and bytes every rank sends in a step.

They equal `hpcpar.schedule.messages.counts`, which walks one rank's messages, and so the trace of a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpar.plan.layout import box_items
from hpcpar.schedule.algorithms.registry import ALGORITHMS
from hpcpar.schedule.steps import Comm, Schedule
from hpcpar.schedule.waves import Wave, groups, waves

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Sent:
    """Messages and bytes that each rank sends in one step: [ranks]."""

    messages: Counts
    n_bytes: Counts


def sent_bytes(schedule: Schedule) -> Counts:
    """Bytes that each rank sends in an iteration: [ranks]."""
    total = np.zeros(schedule.ranks, np.int64)
    for step in schedule.comms:
        total += sent(step, schedule.ranks).n_bytes
    return total


def sent(step: Comm, ranks: int, known: Sequence[Wave] | None = None) -> Sent:
    """Messages and bytes that each of `ranks` ranks sends in a step, whose waves may be `known`.

    The MPI library hides its messages: a collective counts as one message with the rank's own
    contribution. So does a sum on a host.
    """
    messages, items = np.zeros((2, ranks), np.int64)
    if step.group is not None and step.kind in ALGORITHMS[step.algorithm].hidden:
        members = groups(step, step.group, ranks)[0]
        messages[members] = members.shape[1] > 1
        items = messages * box_items(step.source, np.arange(ranks))
    for wave in waves(step, ranks) if known is None else known:
        np.add.at(messages, wave.pairs.senders, wave.times)
        np.add.at(items, wave.pairs.senders, wave.items * wave.times)
    return Sent(messages, items * step.item_bytes)
