"""When each buffer of a rank is alive, from the views that its steps touch."""

from __future__ import annotations

from collections import defaultdict

from hpcpar.plan.plan import Plan
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.memory_plan.tensors import StepTensors
from hpcpar.schedule.memory_plan.views import Buffer, Life
from hpcpar.schedule.steps import PASSES, Comm, Op, Phase


def add_lives(program: int, steps: RankSteps, plan: Plan, tensors: StepTensors,
              images: dict[int, Buffer | None]) -> None:
    """Add the buffers' lives in a program; `images` are the buffers of micro-batches' images."""
    # every micro-batch computes all values itself; FC passes read values from before the switch
    by_part = plan.fc_passes == 1
    # (step, whether it recomputes the contents) by buffer and micro-batch
    touches_of: dict[tuple[Buffer | None, int], list[tuple[int, bool]]] = defaultdict(list)
    for i, part in steps.loads.items():
        touches_of[images[part], part].append((i, False))
    for i in steps.mine:
        step = steps.schedule.steps[i]
        if step.phase not in PASSES or (not isinstance(step, Comm) and step.op is Op.UPDATE):
            continue
        recomputes = step.phase is Phase.RECOMPUTE
        for view, writes in tensors.touched(step):
            owner = None if view is None else view.owner
            touches = touches_of[owner, step.part if by_part else 0]
            touches.append((i, recomputes and writes))
            if isinstance(step, Comm):
                # it completes before the step that waits for it begins
                touches.append((steps.until[i] - 1, False))
    for (buffer, _), touches in touches_of.items():
        if buffer is not None:
            buffer.lives += [Life(program, *ends) for ends in _lives(touches)]


def _lives(touches: list[tuple[int, bool]]) -> list[tuple[int, int]]:
    """First and last step of a buffer's life; a recomputed buffer has two lives."""
    touches = sorted(touches, key=lambda touch: touch[0])
    second = next((i for i, (_, anew) in enumerate(touches) if anew), 0)
    parts = (touches[:second], touches[second:]) if second else (touches,)
    return [(p[0][0], p[-1][0]) for p in parts]
