"""Order in which a mini-batch passes in parts: micro-batches through the stages of a pipeline, and
parts of it through the fully connected layers after one weird trick's switch.
"""

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
    """The first ranks of a plan's stages, in order; a single one where layers do not pass from
    stage to stage, each on its own ranks.
    """
    if any(np.ndim(c.first) for c in plan.configs.values()):
        raise InputError(
            "stages of several pipelines cannot be priced together; price one plan at a time")
    along = [plan.configs[layer.name] for layer in network.layers]
    if len({int(c.first) for c in along}) == 1:
        return [int(along[0].first)]
    ends: dict[int, int] = {}
    for c in along:
        ends[int(c.first)] = max(ends.get(int(c.first), 0), int(c.first + c.ranks))
    starts = list(ends)
    ordered = all(a.first <= b.first for a, b in itertools.pairwise(along))
    apart = ordered and all(ends[a] <= b for a, b in itertools.pairwise(starts))
    return starts if apart else [min(starts)]


def stage_of(starts: Sequence[int], rank: Ints) -> int:
    """The stage that a rank belongs to.

    Parameters
    ----------
    starts : sequence of int
        The first ranks of the stages, see `firsts`.
    """
    return bisect.bisect_right(starts, int(rank)) - 1 if len(starts) > 1 else 0


@dataclass(frozen=True)
class Cell:
    """One task of a stage: the forward or the backward pass of a micro-batch."""

    stage: int
    phase: Phase
    part: int


def in_flight(order: PipelineOrder, stages: int, stage: int, parts: int) -> int:
    """Micro-batches whose activations a stage keeps at most: all of them (GPipe), or one for each
    stage from here to the end.
    """
    return parts if order is PipelineOrder.GPIPE else min(parts, stages - stage)


def cells(order: PipelineOrder, stages: int, parts: int, training: bool = True) -> list[Cell]:
    """The passes of all stages in an order in which each comes after those that it waits for."""
    own = [_of_stage(order, stages, s, parts, training) for s in range(stages)]
    out: list[Cell] = []
    done: set[Cell] = set()
    while any(own):
        ready = [left for left in own if left and _before(left[0], stages) <= done]
        now = [left.pop(0) for left in ready]
        out += now
        done.update(now)
    return out


def _of_stage(order: PipelineOrder, stages: int, stage: int, parts: int,
              training: bool) -> list[Cell]:
    """The passes of a stage in its own order."""
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
    """The passes of other stages that a pass waits for."""
    if cell.phase is Phase.FORWARD:
        return {Cell(cell.stage - 1, Phase.FORWARD, cell.part)} if cell.stage else set()
    return {Cell(cell.stage + 1, Phase.BACKWARD, cell.part)} if cell.stage < stages - 1 else set()


def switch(network: Network) -> int:
    """Index of the first layer that reads features: where one weird trick changes from samples to
    channels.

    Raises
    ------
    InputError
        No layer reads features.
    """
    at = next((i for i, layer in enumerate(network.layers)
               if len(network.shapes[layer.name]) == 1), None)
    if at is None:
        raise InputError(f"network '{network.name}' has layers on images alone, and none where one "
                         "weird trick could change from samples to channels; use the strategy data")
    return min(at + 1, len(network.layers) - 1)
