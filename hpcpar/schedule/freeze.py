"""Freezing: from the outlines of a plan to the one list of steps that is priced and executed.

An outline is of one pass. A plan with micro-batches passes several times, stage by stage, and its
list has every step of every pass. Every stage does its own steps of the list, in order.
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
    """A step at its place in the list, with what it is in every case of a family of plans.

    Attributes
    ----------
    step : Task or Move
        Of its micro-batch's outline.
    part : int
        The micro-batch, or the pass through the layers after a switch.
    needed_by : int
        Place of the first step that uses a movement's result; the number of steps stands for the
        end. A task's own place.
    stage : int
        The stage that computes, or sends.
    receivers : tuple of int
        The stages that wait for a movement.
    """

    step: Task | Move
    part: int
    needed_by: int
    stage: int
    receivers: tuple[int, ...]


def freeze(plan: Plan, each: Sequence[Outline], training: bool = True) -> Schedule:
    """The frozen schedule of the outlines of all micro-batches."""
    return frozen(plan, listed(plan, each, training))


def frozen(plan: Plan, entries: Sequence[Entry]) -> Schedule:
    """The schedule of a single plan's list of steps."""
    return Schedule(plan.ranks, tuple(_frozen(i, entry) for i, entry in enumerate(entries)))


def samples_of(plan: Plan, part: int) -> int:
    """Samples of a micro-batch."""
    start, stop = block(plan.batch, plan.microbatches, part)
    return stop - start


def listed(plan: Plan, each: Sequence[Outline], training: bool = True) -> list[Entry]:
    """The steps of an iteration in the order in which they are done.

    Parameters
    ----------
    each : sequence of Outline
        Of every micro-batch.
    """
    starts = firsts(each[0].edges.network, plan)
    ends = {step: _ends(step, plan, starts) for out in dict.fromkeys(each) for step in out.steps
            if step.present is True or np.any(step.present)}
    if plan.microbatches == 1:
        places = [_Place(0, i, 0) for i, step in enumerate(each[0].steps) if step in ends]
    else:
        places = _by_pass(plan, each, len(starts), ends, training)
    return _numbered(each, places, ends)


#: By step that occurs in some case: the stage that does it or sends, and those that receive.
_Ends = dict[Task | Move, tuple[int, tuple[int, ...]]]


def _ends(step: Task | Move, plan: Plan, starts: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The stage that does a step or sends, and those that receive."""
    if len(starts) == 1:
        return 0, (0,)
    if isinstance(step, Task):
        stage = stage_of(starts, plan.configs[step.layer.name].first)
        return stage, (stage,)
    if step.phase is Phase.LOSS:  # the last stage has it, and all sum it
        return len(starts) - 1, tuple(range(len(starts)))
    sender = stage_of(starts, step.source.config.first)
    return sender, (stage_of(starts, step.destination.config.first),)


class _Place(NamedTuple):
    """Step `at` of a micro-batch's outline, which is done in the pass number `cell`."""

    part: int
    at: int
    cell: int


#: When a stage does a step: in its forward or backward passes, in the last backward pass, or at the
#: end.
_WHEN = {Phase.FORWARD: Phase.FORWARD, Phase.RECOMPUTE: Phase.BACKWARD,
         Phase.BACKWARD: Phase.BACKWARD, Phase.GRADIENT: Phase.GRADIENT, Phase.LOSS: Phase.UPDATE,
         Phase.UPDATE: Phase.UPDATE}


class _Steps:
    """The steps of an outline by (stage, when); `leaving` are movements to other stages."""

    def __init__(self, out: Outline, ends: _Ends) -> None:
        self.own: dict[tuple[int, Phase], list[int]] = defaultdict(list)
        self.leaving: dict[tuple[int, Phase], list[int]] = defaultdict(list)
        for i, step in enumerate(out.steps):
            if step in ends:
                stage, receivers = ends[step]
                chosen = self.own if stage in receivers else self.leaving
                chosen[stage, _WHEN[step.phase]].append(i)


def _by_pass(plan: Plan, each: Sequence[Outline], stages: int, ends: _Ends,
             training: bool) -> list[_Place]:
    """Pass by pass: its steps, then what leaves its stage; gradients are summed in each stage's
    last backward pass.
    """
    steps = {out: _Steps(out, ends) for out in dict.fromkeys(each)}
    last = plan.microbatches - 1
    order = cells(plan.order, stages, plan.microbatches, training)
    places: list[_Place] = []
    for number, cell in enumerate(order):
        found, key = steps[each[cell.part]], (cell.stage, cell.phase)
        own = found.own[key]
        if cell.phase is Phase.BACKWARD and cell.part == last:
            own = sorted(own + found.own[cell.stage, Phase.GRADIENT])
        places += [_Place(cell.part, at, number) for at in (*own, *found.leaving[key])]
    ending = sorted(at for stage in range(stages)
                    for at in steps[each[last]].own[stage, Phase.UPDATE])
    return places + [_Place(last, at, len(order)) for at in ending]


def _numbered(each: Sequence[Outline], places: Sequence[_Place], ends: _Ends) -> list[Entry]:
    """A movement is needed by the first step that its receivers do themselves, of its micro-batch
    and from the place on that its outline says.

    Other steps do not count: their order in the list is not that of the outline.
    """
    # (micro-batch, stage) -> (place in its outline, place in the list), and the end
    own: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(
        lambda: [(sys.maxsize, len(places))])
    done: dict[int, int] = {}  # pass -> the place after it
    for index, (part, at, cell) in enumerate(places):
        stage, receivers = ends[each[part].steps[at]]
        if stage in receivers:
            own[part, stage].append((at, index))
        done[cell] = index + 1
    for found in own.values():
        found.sort()
    entries: list[Entry] = []
    for index, (part, at, cell) in enumerate(places):
        step, needed = each[part].steps[at], index
        if isinstance(step, Move):
            assert step.needed_by > at
            from_there = (step.needed_by, -1)
            waiting = [own[part, receiver] for receiver in ends[step][1]]
            needed = min(found[bisect.bisect_left(found, from_there)][1] for found in waiting)
            if needed <= index:  # nothing that comes later needs it: by the end of its pass
                needed = done[cell]
        shown = step.part if len(each) == 1 else part if step.phase in PASSES else 0
        entries.append(Entry(step, shown, needed, *ends[step]))
    return entries


def _frozen(index: int, entry: Entry) -> Step:
    step = entry.step
    if isinstance(step, Task):
        return Compute(index, step.phase, step.layer.name, step.op, entry.part, step.tensor)
    return frozen_movement(step, index, entry.part, entry.needed_by)


def frozen_movement(step: Move, index: int = 0, part: int = 0, needed_by: int = 0) -> Comm:
    """The communication step that a movement of a single plan is."""
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
