"""When every buffer of a rank is alive: from the views that the steps of its schedules touch."""

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
    """A buffer is touched at a step, and with `anew` computed once more."""

    step: int
    anew: bool = False


def add_lives(program: int, steps: RankSteps, plan: Plan, tensors: StepTensors,
              images: dict[int, Buffer | None]) -> None:
    """Give buffers the lives that they have in a program.

    Parameters
    ----------
    images : dict
        The buffer that the images of each micro-batch are put into.
    """
    # every micro-batch makes all values anew; FC passes read what was made before them
    apart = plan.fc_passes == 1
    found: dict[tuple[Buffer | None, int], list[_At]] = defaultdict(list)
    for i, part in steps.loads.items():
        found[images[part], part].append(_At(i))
    for i in steps.mine:
        step = steps.schedule.steps[i]
        if step.phase not in PASSES or (not isinstance(step, Comm) and step.op is Op.UPDATE):
            continue
        again = step.phase is Phase.RECOMPUTE
        for touch in tensors.touched(step):
            owner = None if touch.view is None else touch.view.owner
            touches = found[owner, step.part if apart else 0]
            touches.append(_At(i, again and touch.makes))
            if isinstance(step, Comm):
                # it is over before the step that waits for it does anything
                touches.append(_At(steps.until[i] - 1))
    for (buffer, _), touches in found.items():
        if buffer is not None:
            buffer.lives += [Life(program, *ends) for ends in _lives(touches)]


def _lives(touches: list[_At]) -> list[tuple[int, int]]:
    """First and last step of a buffer's life, or of its two where it is computed again."""
    touches = sorted(touches, key=lambda t: t.step)
    again = next((i for i, t in enumerate(touches) if t.anew), 0)
    parts = (touches[:again], touches[again:]) if again else (touches,)
    return [(p[0].step, p[-1].step) for p in parts]
