"""Freezing: from a plan's outline to the schedule that is executed.

The outline is of one pass; a plan with micro-batches passes several times, stage by stage, and its
schedule has every step of every pass.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass

from hpcpar.network.graph import Network
from hpcpar.plan.boxes import block
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline import outline
from hpcpar.schedule.outline_steps import Chooser, Move, Outline, Task
from hpcpar.schedule.pipeline_order import cells
from hpcpar.schedule.stages import Stage, stages_of
from hpcpar.schedule.steps import PASSES, Comm, Compute, Group, Phase, Schedule, Step


def lower(network: Network, plan: Plan, choose: Chooser, *, training: bool = True) -> Schedule:
    """The frozen schedule of a plan; see `outline`."""
    if plan.microbatches == 1:
        return freeze(outline(network, plan, choose, training=training))
    sizes = [samples_of(plan, part) for part in range(plan.microbatches)]
    outlines = {n: outline(network, plan, choose, training=training, samples=n) for n in set(sizes)}
    return Schedule(int(plan.ranks), tuple(_passes(plan, [outlines[n] for n in sizes], training)))


def samples_of(plan: Plan, part: int) -> int:
    """Samples of a micro-batch."""
    start, stop = block(int(plan.batch), plan.microbatches, part)
    return stop - start


def present_steps(out: Outline) -> list[int]:
    """Indices of the steps that a single plan really has."""
    return [i for i, step in enumerate(out.steps) if step.present]


def freeze(out: Outline) -> Schedule:
    """The steps of a single plan, numbered."""
    kept = present_steps(out)
    place = {old: new for new, old in enumerate(kept)}
    following = [len(kept)] * (len(out.steps) + 1)
    for i in reversed(range(len(out.steps))):
        following[i] = place.get(i, following[i + 1])
    steps = [_frozen(out.steps[old], place[old], following[_needed_by(out, old)],
                     out.steps[old].part) for old in kept]
    return Schedule(int(out.plan.ranks), tuple(steps))


def _needed_by(out: Outline, i: int) -> int:
    step = out.steps[i]
    if not isinstance(step, Move):
        return i
    assert step.needed_by > i
    return step.needed_by


def _frozen(step: Task | Move, index: int, needed_by: int, part: int) -> Step:
    if isinstance(step, Task):
        return Compute(index, step.phase, step.layer.name, step.op, part, step.tensor)
    kind, group = step.pattern.kind, step.pattern.group
    assert kind is not None
    if group is not None:
        group = Group(group.digits, int(step.holder.config.first))
    return Comm(
        index, step.phase, step.layer, step.tensor, kind, step.holder, step.wanter, bool(step.pattern.reduce), group,
        str(step.algorithm), int(step.segments), step.item_bytes, needed_by, part, step.root, step.covers,
    )


# -- micro-batches ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Entry:
    """Step `at` of a micro-batch's outline, as the schedule takes it up in some cell."""

    part: int
    at: int
    cell: int


def _passes(plan: Plan, outlines: list[Outline], training: bool) -> list[Step]:
    """Cell by cell: its steps, then what goes from it to other stages; gradients are summed in each
    stage's last backward pass.
    """
    stages = [stages_of(plan, out) for out in outlines]
    order = cells(plan.order, len(stages[0]), plan.microbatches, training)
    entries: list[_Entry] = []
    for number, cell in enumerate(order):
        out, here = outlines[cell.part], stages[cell.part]
        forth = cell.phase is Phase.FORWARD
        own = here[cell.stage].forward if forth else here[cell.stage].backward
        if not forth and cell.part == plan.microbatches - 1:
            own = sorted(own + [i for i in here[cell.stage].last
                                if out.steps[i].phase is Phase.GRADIENT])
        leaving = [i for stage in here for i in (stage.into if forth else stage.back)
                   if _sender(here, out, i) == cell.stage]
        entries += [_Entry(cell.part, i, number) for i in (*own, *sorted(leaving))
                    if out.steps[i].present]
    out, part = outlines[-1], len(outlines) - 1
    summed = {e.at for e in entries if out.steps[e.at].phase is Phase.GRADIENT and e.part == part}
    last = sorted(i for stage in stages[-1] for i in stage.last if i not in summed)
    entries += [_Entry(part, i, len(order)) for i in last if out.steps[i].present]
    return _numbered(outlines, entries)


def _sender(stages: list[Stage], out: Outline, i: int) -> int:
    """The stage whose pass makes what movement `i` moves."""
    step = out.steps[i]
    assert isinstance(step, Move)
    first = int(step.holder.config.first)
    starts = sorted({int(c.first) for c in out.plan.configs.values()})
    return bisect.bisect_right(starts, first) - 1 if len(stages) > 1 else 0


def _numbered(outlines: list[Outline], entries: list[_Entry]) -> list[Step]:
    """Number the steps; a movement is needed by the first step of its micro-batch, in or after its
    cell, that the outline says.
    """
    # micro-batch -> (place in its outline, place in the schedule)
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ends: dict[int, int] = {}
    for index, e in enumerate(entries):
        places[e.part].append((e.at, index))
        ends[e.cell] = index + 1
    for found in places.values():
        found.sort()
    steps: list[Step] = []
    for index, e in enumerate(entries):
        step = outlines[e.part].steps[e.at]
        needed = index
        if isinstance(step, Move):
            along = places[e.part]
            at = bisect.bisect_left(along, (_needed_by(outlines[e.part], e.at), -1))
            needed = along[at][1] if at < len(along) else len(entries)
            if needed <= index:  # it is needed by nothing that comes later: by the end of its cell
                needed = ends[e.cell]
        shown = e.part if step.phase in PASSES else 0
        steps.append(_frozen(step, index, needed, shown))
    return steps
