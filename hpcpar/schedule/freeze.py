"""Freezing: from a plan's outlines to the one list of steps that is priced and executed.

An outline describes one pass. A plan with micro-batches has several passes per stage, and its list
has every step of every pass. Each stage does its own steps of the list, in order.
"""

from __future__ import annotations

import bisect
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcpar.plan.boxes import block
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline_steps import Move, Outline, Task
from hpcpar.schedule.pattern import Pattern
from hpcpar.schedule.pipeline_order import cells, firsts, stage_of
from hpcpar.schedule.steps import PASSES, Comm, Compute, Group, Phase, Schedule, Step


class Entry(NamedTuple):
    """A step at its place in the list, for every case of a family of plans.

    Attributes
    ----------
    step : Task or Move
        The step in its micro-batch's outline.
    part : int
        The micro-batch, or the pass through the layers after a switch.
    needed_by : int
        For a movement, the index of the first step that uses its result, or the number of steps
        (the end). For a task, its own index.
    stage : int
        The stage that computes or sends.
    receivers : tuple of int
        The stages that wait for a movement.
    """

    step: Task | Move
    part: int
    needed_by: int
    stage: int
    receivers: tuple[int, ...]


def freeze(plan: Plan, outlines: Sequence[Outline], training: bool = True) -> Schedule:
    """The schedule of a plan's outlines, one per micro-batch."""
    return frozen(plan, listed(plan, outlines, training))


def frozen(plan: Plan, entries: Sequence[Entry]) -> Schedule:
    """The schedule of a single plan's list of steps."""
    return Schedule(plan.ranks, tuple(_frozen(i, entry) for i, entry in enumerate(entries)))


def samples_of(plan: Plan, part: int) -> int:
    """Samples of a micro-batch."""
    start, stop = block(plan.batch, plan.microbatches, part)
    return stop - start


def listed(plan: Plan, outlines: Sequence[Outline], training: bool = True) -> list[Entry]:
    """The steps of an iteration in execution order, from one outline per micro-batch."""
    starts = firsts(outlines[0].edges.network, plan)
    ends = {step: _ends(step, plan, starts)
            for outline in dict.fromkeys(outlines) for step in outline.steps
            if step.present is True or np.any(step.present)}
    if plan.microbatches == 1:
        places = [_Place(0, i, 0) for i, step in enumerate(outlines[0].steps) if step in ends]
    else:
        places = _by_pass(plan, outlines, len(starts), ends, training)
    return _numbered(outlines, places, ends)


#: For each step that occurs: the stage that computes or sends, and the stages that receive.
_Ends = dict[Task | Move, tuple[int, tuple[int, ...]]]


def _ends(step: Task | Move, plan: Plan, starts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    if len(starts) == 1:
        return 0, (0,)
    if isinstance(step, Task):
        stage = stage_of(starts, plan.configs[step.layer.name].first)
        return stage, (stage,)
    if step.phase is Phase.LOSS:  # the last stage computes it, and all stages sum it
        return len(starts) - 1, tuple(range(len(starts)))
    sender = stage_of(starts, step.source.config.first)
    return sender, (stage_of(starts, step.destination.config.first),)


class _Place(NamedTuple):
    """Step `at` of a micro-batch's outline, in pass number `cell`."""

    part: int
    at: int
    cell: int


#: When a stage does a step: in its forward or backward passes, in its last backward pass
#: (gradients), or at the end of the iteration (updates).
_WHEN = {Phase.FORWARD: Phase.FORWARD, Phase.RECOMPUTE: Phase.BACKWARD,
         Phase.BACKWARD: Phase.BACKWARD, Phase.GRADIENT: Phase.GRADIENT, Phase.LOSS: Phase.UPDATE,
         Phase.UPDATE: Phase.UPDATE}


class _Steps:
    """An outline's steps by (stage, when): `inside` a stage, or `leaving` it for other stages."""

    def __init__(self, outline: Outline, ends: _Ends) -> None:
        self.inside: dict[tuple[int, Phase], list[int]] = defaultdict(list)
        self.leaving: dict[tuple[int, Phase], list[int]] = defaultdict(list)
        for i, step in enumerate(outline.steps):
            if step in ends:
                stage, receivers = ends[step]
                chosen = self.inside if stage in receivers else self.leaving
                chosen[stage, _WHEN[step.phase]].append(i)


def _by_pass(plan: Plan, outlines: Sequence[Outline], stages: int, ends: _Ends,
             training: bool) -> list[_Place]:
    """Pass by pass: the steps inside its stage, then the messages to other stages. Each stage sums
    its weight gradients in its last backward pass.
    """
    steps = {outline: _Steps(outline, ends) for outline in dict.fromkeys(outlines)}
    last = plan.microbatches - 1
    order = cells(plan.order, stages, plan.microbatches, training)
    places: list[_Place] = []
    for number, cell in enumerate(order):
        of_part, key = steps[outlines[cell.part]], (cell.stage, cell.phase)
        inside = of_part.inside[key]
        if cell.phase is Phase.BACKWARD and cell.part == last:
            inside = sorted(inside + of_part.inside[cell.stage, Phase.GRADIENT])
        places += [_Place(cell.part, at, number) for at in (*inside, *of_part.leaving[key])]
    ending = sorted(at for stage in range(stages)
                    for at in steps[outlines[last]].inside[stage, Phase.UPDATE])
    return places + [_Place(last, at, len(order)) for at in ending]


def _numbered(outlines: Sequence[Outline], places: Sequence[_Place], ends: _Ends) -> list[Entry]:
    """Find the step that needs each movement: in its micro-batch, the first step inside a receiving
    stage at or after the place that the outline names.

    Other stages' steps do not count, because the list orders them differently from the outline.
    """
    # (micro-batch, stage) -> (place in its outline, place in the list), and the end
    inside: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(
        lambda: [(sys.maxsize, len(places))])
    pass_ends: dict[int, int] = {}
    for index, (part, at, cell) in enumerate(places):
        stage, receivers = ends[outlines[part].steps[at]]
        if stage in receivers:
            inside[part, stage].append((at, index))
        pass_ends[cell] = index + 1
    for pairs in inside.values():
        pairs.sort()
    entries: list[Entry] = []
    for index, (part, at, cell) in enumerate(places):
        step, needed = outlines[part].steps[at], index
        if isinstance(step, Move):
            assert step.needed_by > at
            named = (step.needed_by, -1)
            waiting = [inside[part, receiver] for receiver in ends[step][1]]
            needed = min(pairs[bisect.bisect_left(pairs, named)][1] for pairs in waiting)
            if needed <= index:  # no later step needs it: complete it by the end of its pass
                needed = pass_ends[cell]
        shown = step.part if len(outlines) == 1 else part if step.phase in PASSES else 0
        entries.append(Entry(step, shown, needed, *ends[step]))
    return entries


def _frozen(index: int, entry: Entry) -> Step:
    step = entry.step
    if isinstance(step, Task):
        return Compute(index, step.phase, step.layer.name, step.op, entry.part, step.tensor)
    return frozen_movement(step, index, entry.part, entry.needed_by)


def frozen_movement(step: Move, index: int = 0, part: int = 0, needed_by: int = 0) -> Comm:
    """A single plan's movement as a communication step."""
    assert isinstance(step.pattern, Pattern) and step.pattern.kind is not None
    kind, group = step.pattern.kind, step.pattern.group
    if group is not None:
        group = Group(group.mesh_axes, int(step.source.config.first))
    return Comm(
        index=index, phase=step.phase, layer=step.layer, tensor=step.tensor, kind=kind,
        source=step.source, destination=step.destination, reduce=step.pattern.reduce, group=group,
        algorithm=str(step.algorithm), segments=int(step.segments),
        item_bytes=step.item_bytes, needed_by=needed_by, part=part, root=step.root,
        covers=step.covers, inner=int(step.inner),
    )
