"""Stages of a pipeline: which steps are whose."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline_steps import Move, Outline
from hpcpar.schedule.pipeline_order import firsts
from hpcpar.schedule.steps import Phase


@dataclass
class Stage:
    """Steps of the layers on one set of ranks, and what arrives from the stages before and after.

    Attributes
    ----------
    forward, backward, last : list of int
        Indices of steps: of every micro-batch, and of the loss, the gradients and the updates at
        the end.
    into, back : list of int
        Movements into the stage: activations from stages before, gradients from stages after.
    """

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return [*self.into, *self.forward, *self.back, *self.backward, *self.last]


def stages_of(plan: Plan, out: Outline) -> list[Stage]:
    """The stages in order of their first rank."""
    starts = firsts(out.edges.network, plan)
    found = {first: Stage() for first in starts}

    def whose(first: int) -> int:
        return first if len(starts) > 1 else starts[0]

    for i, step in enumerate(out.steps):
        if isinstance(step, Move):
            here, there = whose(int(step.wanter.config.first)), whose(int(step.holder.config.first))
            # what everyone is told of the loss belongs to the stage that knows it
            stage = found[there if step.phase is Phase.LOSS else here]
            if here != there and step.phase is not Phase.LOSS:
                (stage.into if step.phase is Phase.FORWARD else stage.back).append(i)
                continue
        else:
            stage = found[whose(int(plan.configs[step.layer.name].first))]
        if step.phase is Phase.FORWARD:
            stage.forward.append(i)
        elif step.phase in (Phase.RECOMPUTE, Phase.BACKWARD):
            stage.backward.append(i)
        else:
            stage.last.append(i)
    return list(found.values())
