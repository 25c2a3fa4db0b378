"""Decides the order in which micro-batches pass through the stages of a pipeline."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcpar.errors import InputError
from hpcpar.network.graph import Network
from hpcpar.plan.config import Ints
from hpcpar.plan.plan import PipelineOrder, Plan
from hpcpar.schedule.steps import Phase


def firsts(network: Network, plan: Plan) -> list[int]:
    """The first rank of each stage, in order; a single one if the plan is not a pipeline."""
    if any(np.ndim(c.first) for c in plan.configs.values()):
        raise InputError(
            "stages of several pipelines cannot be priced together; price one plan at a time")
    configs = [plan.configs[layer.name] for layer in network.layers]
    if len({int(c.first) for c in configs}) == 1:
        return [int(configs[0].first)]
    ends: dict[int, int] = {}
    for c in configs:
        ends[int(c.first)] = max(ends.get(int(c.first), 0), int(c.first + c.ranks))
    starts = list(ends)
    ordered = all(a.first <= b.first for a, b in itertools.pairwise(configs))
    disjoint = ordered and all(ends[a] <= b for a, b in itertools.pairwise(starts))
    return starts if disjoint else [min(starts)]


def stage_of(starts: Sequence[int], rank: Ints) -> int:
    """The stage of a rank; `starts` are the stages' first ranks (`firsts`)."""
    return bisect.bisect_right(starts, int(rank)) - 1 if len(starts) > 1 else 0


@dataclass(frozen=True)
class Cell:
    """One task of a stage: the forward or the backward pass of a micro-batch."""

    stage: int
    phase: Phase
    part: int


def in_flight(order: PipelineOrder, stages: int, stage: int, parts: int) -> int:
    """The most micro-batches that a stage keeps: all (GPipe), or one per stage left (1F1B)."""
    return parts if order is PipelineOrder.GPIPE else min(parts, stages - stage)


def cells(order: PipelineOrder, stages: int, parts: int, training: bool = True) -> list[Cell]:
    """The passes of all stages, each after the passes that it waits for."""
    queues = [_of_stage(order, stages, s, parts, training) for s in range(stages)]
    out: list[Cell] = []
    done: set[Cell] = set()
    while any(queues):
        ready = [queue for queue in queues if queue and _before(queue[0], stages) <= done]
        now = [queue.pop(0) for queue in ready]
        out += now
        done.update(now)
    return out


def _of_stage(order: PipelineOrder, stages: int, stage: int, parts: int,
              training: bool) -> list[Cell]:
    """One stage's passes, in order."""
    forward = [Cell(stage, Phase.FORWARD, m) for m in range(parts)]
    backward = [Cell(stage, Phase.BACKWARD, m) for m in range(parts)] if training else []
    if not training or order is PipelineOrder.GPIPE:
        return forward + backward
    ahead = in_flight(order, stages, stage, parts)
    mixed = forward[:ahead]
    for m in range(parts):
        mixed.append(backward[m])
        mixed += forward[ahead + m:ahead + m + 1]
    return mixed


def _before(cell: Cell, stages: int) -> set[Cell]:
    """The other stages' passes that a pass waits for."""
    if cell.phase is Phase.FORWARD:
        return {Cell(cell.stage - 1, Phase.FORWARD, cell.part)} if cell.stage else set()
    return {Cell(cell.stage + 1, Phase.BACKWARD, cell.part)} if cell.stage < stages - 1 else set()
