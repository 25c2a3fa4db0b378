"""Freezing: from a plan's outline to the schedule that is executed."""

from __future__ import annotations

from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.schedule.builder import Chooser, Move, Outline
from hpcpar.schedule.outline import outline
from hpcpar.schedule.steps import Comm, Compute, Schedule, Step


def lower(network: Network, plan: Plan, choose: Chooser, *, training: bool = True) -> Schedule:
    """The frozen schedule of a plan; see `outline`."""
    return freeze(outline(network, plan, choose, training=training))


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
    steps: list[Step] = []
    for old in kept:
        step = out.steps[old]
        if isinstance(step, Move):
            kind = step.pattern.kind
            assert kind is not None and step.needed_by > old
            steps.append(
                Comm(
                    place[old], step.phase, step.layer, step.tensor, kind, step.holder, step.wanter, bool(step.pattern.reduce),
                    step.pattern.group, str(step.algorithm), int(step.segments), step.item_bytes, following[step.needed_by],
                )
            )
        else:
            steps.append(Compute(place[old], step.phase, step.layer.name, step.op))
    return Schedule(int(out.plan.ranks), tuple(steps))
