"""A pipeline whose ranks take turns on cores: how soon its stages can be done on them.

Whoever has a core keeps it until it has to wait, and then the next on that core that can go on gets
it. So beside what all ranks' work takes on the cores, an iteration has the times when a core has
nothing to do: until the first micro-batch has come to one of its ranks, and while the last one is
on its way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcpar.machine.model import Machine
from hpcpar.schedule.pipeline_order import Cell
from hpcpar.schedule.steps import Phase


@dataclass(frozen=True)
class Cores:
    """Who computes where.

    Attributes
    ----------
    of : list of int
        Every rank's core: those of a unit of the innermost level follow each other on its cores.
    stages : list of range
        The ranks of each stage.
    """

    of: list[int]
    stages: list[range]

    @classmethod
    def shared(cls, machine: Machine, ranks: int, stages: list[range]) -> Cores:
        """Of a machine whose ranks share cores (`hpcpar.machine.model.Device.at_once`)."""
        unit = machine.levels[0].ranks or ranks
        cores = max(1, math.ceil(machine.device.at_once))
        return cls([rank // unit * cores + rank % unit % cores for rank in range(ranks)], stages)

    def soonest_s(self, order: Sequence[Cell], work_s: Mapping[tuple[int, Phase], float],
                  last_s: Sequence[float]) -> float:
        """When the last rank is done.

        Parameters
        ----------
        order : sequence of Cell
            The passes of all stages; those of one stage in their order.
        work_s : mapping
            What a rank of a stage has to do for a micro-batch, forward or backward, by itself.
        last_s : sequence of float
            What a rank of each stage does when all passes are done.
        """
        todo = [[cell for cell in order if cell.stage == s] for s in range(len(self.stages))]
        place = {rank: s for s, ranks in enumerate(self.stages) for rank in ranks}
        done = dict.fromkeys(place, (0, 0.0))  # how many of its stage's passes, and when
        core_s = dict.fromkeys(self.of, 0.0)
        # how many ranks are through, and when the latest of them was
        ends: dict[Cell, tuple[int, float]] = {}
        for _ in range(sum(len(todo[s]) for s in place.values())):
            begin_s, ready_s, rank = min(self._next(rank, todo[s], done[rank], ends, core_s)
                                         for rank, s in place.items())
            s, count = place[rank], done[rank][0]
            cell = todo[s][count]
            end_s = begin_s + work_s[s, cell.phase]
            done[rank], core_s[self.of[rank]] = (count + 1, end_s), end_s
            through, latest_s = ends.get(cell, (0, 0.0))
            ends[cell] = (through + 1, max(latest_s, end_s))
        for rank, (_, ready_s) in sorted(done.items(), key=lambda item: item[1][1]):
            core_s[self.of[rank]] = max(core_s[self.of[rank]], ready_s) + last_s[place[rank]]
        return max(core_s.values())

    def _next(
        self, rank: int, todo: Sequence[Cell], done: tuple[int, float], ends: Mapping[Cell, tuple[int, float]], core_s: Mapping[int, float]
    ) -> tuple[float, float, int]:
        """When a rank can begin its next pass, since when it could if the core were free, and the
        rank.
        """
        count, ready_s = done
        if count == len(todo):
            return math.inf, math.inf, rank
        cell = todo[count]
        other = cell.stage - 1 if cell.phase is Phase.FORWARD else cell.stage + 1
        if 0 <= other < len(self.stages):
            through, latest_s = ends.get(replace(cell, stage=other), (0, 0.0))
            if through < len(self.stages[other]):
                return math.inf, math.inf, rank
            ready_s = max(ready_s, latest_s)
        return max(ready_s, core_s[self.of[rank]]), ready_s, rank
