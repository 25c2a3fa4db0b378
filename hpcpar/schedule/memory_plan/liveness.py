"""Decides when each buffer of a rank is alive, from the views that its steps touch."""

from __future__ import annotations

from collections import defaultdict

from hpcpar.schedule.memory_plan.passes import PassPlans
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.memory_plan.views import Buffer, View
from hpcpar.schedule.steps import PASSES, Comm, Op, Phase


def add_lives(steps: RankSteps, passes: PassPlans) -> None:
    """Add the lives that the buffers of the passes have in a program."""
    images = passes.network.layers[0].name
    # every micro-batch computes all values itself; FC passes read values from before the switch
    by_part = passes.plan.fc_passes == 1
    # (step, whether it recomputes the contents) by buffer and micro-batch
    touches_of: dict[tuple[Buffer, int], list[tuple[int, bool]]] = defaultdict(list)

    def touch(view: View | None, part: int, *touches: tuple[int, bool]) -> None:
        if view is not None and view.owner is not None:
            touches_of[view.owner, part if by_part else 0] += touches

    for i, part in steps.loads.items():
        touch(passes.all[part].blocks[images].out, part, (i, False))
    for i in steps.mine:
        step = steps.schedule.steps[i]
        if step.phase not in PASSES or (not isinstance(step, Comm) and step.op is Op.UPDATE):
            continue
        # a message completes before the step that waits for it begins
        end = [(steps.until[i] - 1, False)] if isinstance(step, Comm) else []
        read, computed = passes.touched(step)
        for view in read:
            touch(view, step.part, (i, False), *end)
        touch(computed, step.part, (i, step.phase is Phase.RECOMPUTE), *end)
    for (buffer, _), touches in touches_of.items():
        buffer.lives += [steps.moments(*ends) for ends in _lives(touches)]


def _lives(touches: list[tuple[int, bool]]) -> list[tuple[int, int]]:
    """First and last step of a buffer's life; a recomputed buffer has two lives."""
    touches = sorted(touches, key=lambda touch: touch[0])
    second = next((i for i, (_, anew) in enumerate(touches) if anew), 0)
    parts = (touches[:second], touches[second:]) if second else (touches,)
    return [(p[0][0], p[-1][0]) for p in parts]
