"""Decides one rank's part of a schedule: its steps, and when each movement must finish."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.memory_plan.passes import PassPlans
from hpcpar.schedule.steps import Comm, Phase, Schedule, Step


@dataclass(frozen=True)
class RankSteps:
    """The steps that a rank takes part in: `mine` has their indices, in order.

    Attributes
    ----------
    start : int
        Moment of the first step; moments count through the steps of all of the rank's programs.
    until : dict
        For each communication step, the step before which this rank must finish it.
    loads : dict
        For the first step that reads a micro-batch's images, the micro-batch to load before it.
        With FC passes, all images are loaded before the first step.
    """

    schedule: Schedule
    start: int
    mine: tuple[int, ...]
    until: dict[int, int]
    loads: dict[int, int]

    def moments(self, first: int, last: int) -> range:
        """The moments from step `first` to step `last`."""
        return range(self.start + first, self.start + last + 1)

    def in_flight(self, step: int) -> range:
        """The moments at which the messages of a communication step are in flight."""
        return self.moments(step, self.until[step] - 1)


def rank_steps(passes: PassPlans, schedule: Schedule, start: int) -> RankSteps:
    """A rank's part of a schedule."""
    network, plan, rank = passes.network, passes.plan, passes.rank
    steps = [s for s in schedule.steps if (
        s.concerns(rank) if isinstance(s, Comm) else plan.configs[s.layer].holds(rank))]
    loss = network.layers[-1].name
    writes = {
        Phase.FORWARD: _by_part([s for s in steps if s.phase is Phase.FORWARD]),
        # the loss computes its gradient in its forward pass
        Phase.BACKWARD: _by_part([s for s in steps
                                  if s.phase is Phase.BACKWARD or s.layer == loss])}
    until = {}
    for s in steps:
        if isinstance(s, Comm):
            only_sends = s.between and not s.destination.holds(rank)
            until[s.index] = _overwritten(s, writes.get(s.phase, {}), passes,
                                          len(schedule.steps)) if only_sends else s.needed_by
    mine = tuple(s.index for s in steps)
    return RankSteps(schedule, start, mine, until, _loads(network, plan, steps))


def _by_part(steps: list[Step]) -> dict[int, list[int]]:
    """Indices of steps by micro-batch, in order."""
    out: dict[int, list[int]] = {}
    for step in steps:
        out.setdefault(step.part, []).append(step.index)
    return out


def _overwritten(sent: Comm, writes: dict[int, list[int]], passes: PassPlans, end: int) -> int:
    """The first later step of another micro-batch that overwrites the array that `sent` reads.

    `writes` has the steps that write outputs, or gradients, by micro-batch. Gradients have one slot
    for all micro-batches.
    """
    backward = sent.phase is Phase.BACKWARD
    first = end
    for part, steps in writes.items():
        at = bisect.bisect_right(steps, sent.index)
        if at < len(steps) and part != sent.part and (backward or passes.overwrites(part, sent)):
            first = min(first, steps[at])
    return first


def _loads(network: Network, plan: Plan, steps: list[Step]) -> dict[int, int]:
    if plan.fc_passes > 1:
        return {0: 0}
    readers = set(network.consumers[network.layers[0].name])
    first: dict[int, int] = {}
    for s in steps:
        if s.phase is Phase.FORWARD and s.layer in readers:
            first.setdefault(s.part, s.index)
    return {at: part for part, at in first.items()}
