"""Decides which buffers one rank needs for its schedules, their lifetimes and their addresses.

The executor allocates by this plan, and the cost model predicts memory from it. It needs no MPI, no
backend and no arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.memory_plan.liveness import add_lives
from hpcpar.schedule.memory_plan.packing import ALIGNMENT_BYTES, moments, pack, peak
from hpcpar.schedule.memory_plan.passes import PassPlans
from hpcpar.schedule.memory_plan.rank_steps import RankSteps, rank_steps
from hpcpar.schedule.memory_plan.views import Buffer
from hpcpar.schedule.steps import Schedule


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one rank.

    Attributes
    ----------
    passes : PassPlans
        The blocks of every layer in every pass, and the views that steps read and write.
    programs : list of RankSteps
        The rank's part of each schedule.
    """

    passes: PassPlans
    programs: list[RankSteps]

    @property
    def buffers(self) -> list[Buffer]:
        """The arrays of the rank."""
        return list(self.passes.buffers.values())

    def peak(self) -> list[Buffer]:
        """The buffers that are alive at the moment of peak memory."""
        alive = [moments(b.lives) for b in self.buffers]
        _, moment = peak([b.items for b in self.buffers], alive)
        return [b for b, bits in zip(self.buffers, alive, strict=True) if bits >> moment & 1]

    def place(self) -> int:
        """Pack the buffers into one array, and return its items; buffers that are never alive
        together may share memory.
        """
        unit = ALIGNMENT_BYTES // self.passes.plan.item_bytes
        sizes = [-(-b.items // unit) * unit for b in self.buffers]
        places, total = pack(sizes, [moments(b.lives) for b in self.buffers])
        ends = [at + size for at, size in zip(places, sizes, strict=True)]
        for buffer, first, end in zip(self.buffers, places, ends, strict=True):
            overlapping = sum(max(first, other) < min(end, other_end)
                              for other, other_end in zip(places, ends, strict=True))
            buffer.first, buffer.clears = first, buffer.zero and overlapping > 1
        return max(total, *sizes, 0)  # buffers that no step touches lie anywhere


def plan_memory(network: Network, plan: Plan, rank: int, schedules: Sequence[Schedule], *,
                training: bool, edges: Edges | None = None) -> MemoryPlan:
    """Plan the memory of a rank.

    Parameters
    ----------
    schedules : sequence of Schedule
        The schedules that the rank runs, one after the other, in the same memory.
    training : bool
        False leaves out gradients.
    """
    passes = PassPlans(network, plan, rank, edges or Edges(network, plan), training)
    programs: list[RankSteps] = []
    start = 0
    for schedule in schedules:
        programs.append(rank_steps(passes, schedule, start))
        add_lives(programs[-1], passes)
        start += len(schedule.steps) + 1
    return MemoryPlan(passes, programs)
