"""When each buffer of a rank is alive, from the views that its steps touch."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hpcpar.plan.plan import Plan
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.memory_plan.tensors import StepTensors
from hpcpar.schedule.memory_plan.views import Buffer, Life
from hpcpar.schedule.steps import PASSES, Comm, Op, Phase


@dataclass(frozen=True)
class _At:
    """A step touches a buffer; with `anew`, it recomputes the contents."""

    step: int
    anew: bool = False


def add_lives(program: int, steps: RankSteps, plan: Plan, tensors: StepTensors,
              images: dict[int, Buffer | None]) -> None:
    """Add the buffers' lives in a program; `images` are the buffers of micro-batches' images."""
    # every micro-batch computes all values itself; FC passes read values from before the switch
    by_part = plan.fc_passes == 1
    touches_of: dict[tuple[Buffer | None, int], list[_At]] = defaultdict(list)
    for i, part in steps.loads.items():
        touches_of[images[part], part].append(_At(i))
    for i in steps.mine:
        step = steps.schedule.steps[i]
        if step.phase not in PASSES or (not isinstance(step, Comm) and step.op is Op.UPDATE):
            continue
        recomputes = step.phase is Phase.RECOMPUTE
        for touch in tensors.touched(step):
            owner = None if touch.view is None else touch.view.owner
            touches = touches_of[owner, step.part if by_part else 0]
            touches.append(_At(i, recomputes and touch.writes))
            if isinstance(step, Comm):
                # it completes before the step that waits for it begins
                touches.append(_At(steps.until[i] - 1))
    for (buffer, _), touches in touches_of.items():
        if buffer is not None:
            buffer.lives += [Life(program, *ends) for ends in _lives(touches)]


def _lives(touches: list[_At]) -> list[tuple[int, int]]:
    """First and last step of a buffer's life; a recomputed buffer has two lives."""
    touches = sorted(touches, key=lambda t: t.step)
    second = next((i for i, t in enumerate(touches) if t.anew), 0)
    parts = (touches[:second], touches[second:]) if second else (touches,)
    return [(p[0].step, p[-1].step) for p in parts]
