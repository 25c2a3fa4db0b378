"""The timeline of a plan whose stages live on different ranks, or whose mini-batch is cut into micro-batches (GPipe).

Stage s computes micro-batch m forward once it has done m - 1 and stage s - 1 has sent it m; backward likewise from the last stage to the
first, after all forward passes of the stage. With stages of equal times F and B and S micro-batches this is ParaDL's
(p + S - 1) (F + B). Then each stage sums and applies its gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcpar.cost.timeline import Block, Item, Span, Timeline, timeline
from hpcpar.errors import InputError
from hpcpar.plan.plan import Plan
from hpcpar.schedule.builder import Move, Outline
from hpcpar.schedule.steps import Phase


@dataclass
class Stage:
    """Steps of the layers on one set of ranks, and what arrives from the stages before and after.

    Attributes
    ----------
    forward, backward, last : list of int
        Indices of steps: of every micro-batch, and of the gradients and updates at the end.
    into, back : list of int
        Movements into the stage: activations from the stage before, gradients from the stage after.
    """

    forward: list[int]
    backward: list[int]
    last: list[int]
    into: list[int]
    back: list[int]

    @property
    def all(self) -> list[int]:
        return [*self.into, *self.forward, *self.back, *self.backward, *self.last]


def stages_of(plan: Plan, out: Outline) -> list[Stage]:
    """The stages in order of their first rank."""
    if any(np.ndim(c.first) for c in plan.configs.values()):
        raise InputError("stages of several pipelines cannot be priced together; price one plan at a time")
    found = {int(first): Stage([], [], [], [], []) for first in sorted({int(c.first) for c in plan.configs.values()})}
    for i, step in enumerate(out.steps):
        if isinstance(step, Move):
            here, there = int(step.wanter.config.first), int(step.holder.config.first)
            stage = found[here]
            if here != there:
                (stage.into if step.phase is Phase.FORWARD else stage.back).append(i)
                continue
        else:
            stage = found[int(plan.configs[step.layer.name].first)]
        if step.phase in (Phase.FORWARD, Phase.LOSS):
            stage.forward.append(i)
        elif step.phase is Phase.BACKWARD:
            stage.backward.append(i)
        else:
            stage.last.append(i)
    return list(found.values())


def pipeline(plan: Plan, out: Outline, items: list[Item], hidden: float, levels: int) -> Timeline:
    """Lay out an iteration; spans are those of the first micro-batch, and of the end."""
    stages = stages_of(plan, out)
    micro = plan.microbatches
    spans: list[Span] = [Span(0.0, 0.0)] * len(items)
    waits: list[Any] = [0.0] * len(items)

    def part(indices: list[int], times: int) -> Any:
        line = _line(items, indices, hidden, levels)
        for i, span, wait in zip(indices, line.spans, line.waits_s, strict=True):
            spans[i], waits[i] = span, wait * times
        return line.total_s

    forward, backward = [part(s.forward, micro) for s in stages], [part(s.backward, micro) for s in stages]
    into = [sum((items[i].seconds for i in s.into), np.float64(0)) for s in stages]
    back = [sum((items[i].seconds for i in s.back), np.float64(0)) for s in stages]
    n = len(stages)
    none = np.float64(0)
    marks: list[tuple[int, Phase, int, Any, Any]] = []
    done = [[none] * micro for _ in stages]
    for m in range(micro):
        for s in range(n):
            ready = np.maximum(done[s][m - 1] if m else none, done[s - 1][m] + into[s] if s else none)
            done[s][m] = ready + forward[s]
            marks.append((s, Phase.FORWARD, m, ready, done[s][m]))
            if m == 0:
                _shift(spans, stages[s].forward, ready)
                for i in stages[s].into:
                    spans[i] = Span(ready - into[s], ready, "network")
    returned = [[none] * micro for _ in stages]
    for m in range(micro):
        for s in reversed(range(n)):
            ready = np.maximum(returned[s][m - 1] if m else done[s][-1], returned[s + 1][m] + back[s] if s < n - 1 else none)
            returned[s][m] = ready + backward[s]
            marks.append((s, Phase.BACKWARD, m, ready, returned[s][m]))
            if m == 0:
                _shift(spans, stages[s].backward, ready)
                for i in stages[s].back:
                    spans[i] = Span(ready - back[s], ready, "network")
    total: Any = none
    for s, stage in enumerate(stages):
        end = part(stage.last, 1)
        _shift(spans, stage.last, returned[s][-1])
        total = np.maximum(total, returned[s][-1] + end)
        marks.append((s, Phase.UPDATE, micro - 1, returned[s][-1], returned[s][-1] + end))
        for i in (*stage.into, *stage.back):
            waits[i] = items[i].seconds * micro
    blocks = [Block(s, phase.value, m, float(a), float(b)) for s, phase, m, a, b in marks] if np.ndim(total) == 0 else []
    return Timeline(tuple(spans), tuple(waits), total, tuple(blocks))


def _shift(spans: list[Span], indices: list[int], by: float) -> None:
    for i in indices:
        spans[i] = replace(spans[i], start_s=spans[i].start_s + by, end_s=spans[i].end_s + by)


def _line(items: list[Item], indices: list[int], hidden: float, levels: int) -> Timeline:
    """The timeline of some of the steps; what is needed by none of them is needed at their end."""
    place = {old: new for new, old in enumerate(indices)}
    chosen = []
    for i in indices:
        by = items[i].needed_by
        if by is not None:
            by = next((place[j] for j in range(by, len(items)) if j in place), len(indices))
        chosen.append(replace(items[i], needed_by=by))
    return timeline(chosen, hidden, levels)
