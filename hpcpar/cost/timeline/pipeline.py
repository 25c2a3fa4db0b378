"""The timeline of a plan whose stages live on different ranks, or whose mini-batch is cut into
micro-batches.

Stage s computes micro-batch m forward once stage s - 1 has sent it m, and backward once stage s + 1
has; what it does first is up to the plan's order (GPipe: all forward first; or one forward, one
backward). With GPipe, stages of equal times F and B and S micro-batches this is ParaDL's (p + S -
1) (F + B). Then each stage sums and applies its gradients.

What computing cannot hide of a message between stages keeps both of them busy, each for half of it
(one from further away is counted to the neighbour). Where ranks take turns on cores, an iteration
takes no less than their work, and handing a message on keeps cores busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hpcpar.cost.timeline.lateness import Late
from hpcpar.cost.timeline.overlap import Block, Item, Span, Timeline, timeline
from hpcpar.plan.plan import Plan
from hpcpar.schedule.outline_steps import Outline
from hpcpar.schedule.pipeline_order import Cell, cells
from hpcpar.schedule.stages import stages_of
from hpcpar.schedule.steps import Phase


class Works(NamedTuple):
    """What a stage has to do (s): in a micro-batch's forward and backward pass, and at the end; and
    with messages in either pass.
    """

    forward: list[Any]
    backward: list[Any]
    last: list[Any]
    messages_forward: list[Any]
    messages_backward: list[Any]


def pipeline(
    plan: Plan, out: Outline, items: list[Item], hidden: float, levels: int, rate: float = 1.0, *, late_s: Late | None = None,
    soonest_s: Callable[[Sequence[Cell], Works], float] | None = None, hop_s: Callable[[int, Any], Any] | None = None,
) -> Timeline:
    """Lay out an iteration; spans are those of the first micro-batch, and of the end.

    Parameters
    ----------
    late_s : callable, optional
        As for `hpcpar.cost.timeline.overlap.timeline`, of the messages inside a stage.
    soonest_s : callable, optional
        From the passes of all stages and what their ranks have to do to when that is done at the
        soonest on the cores that they share.
    hop_s : callable, optional
        From a stage and what it has computed before it sends, what handing a message on takes the
        cores beyond that. All of that counts.
    """
    stages = stages_of(plan, out)
    micro = plan.microbatches
    spans: list[Span] = [Span(0.0, 0.0)] * len(items)
    waits: list[Any] = [0.0] * len(items)

    def part(indices: list[int], times: int) -> Any:
        line = _line(items, indices, hidden, levels, rate, late_s)
        for i, span, wait in zip(indices, line.spans, line.waits_s, strict=True):
            spans[i], waits[i] = span, wait * times
        return line.total_s

    forward, backward = [part(s.forward, micro) for s in stages], [part(s.backward, micro) for s in stages]
    into = [sum((items[i].seconds for i in s.into), np.float64(0)) for s in stages]
    back = [sum((items[i].seconds for i in s.back), np.float64(0)) for s in stages]
    n, busy = len(stages), (1.0 - hidden) / 2
    none = np.float64(0)
    # what leaves a stage for the next one, and for the one before
    on, home = [*into[1:], none], [none, *back[:-1]]
    marks: list[tuple[int, Phase, int, Any, Any]] = []
    free = [none] * n  # when each stage has done what it has begun
    done: dict[Cell, Any] = {}
    passes = cells(plan.order, n, micro, training=any(s.backward or s.back for s in stages))
    for cell in passes:
        s, forth = cell.stage, cell.phase is Phase.FORWARD
        before = done.get(replace(cell, stage=s - 1 if forth else s + 1))
        coming, going, moves = (into[s], on[s], stages[s].into) if forth else (back[s], home[s], stages[s].back)
        taking = busy * coming
        ready = free[s] if before is None else np.maximum(free[s],
                                                          before + coming - taking) + taking
        done[cell] = ready + (forward if forth else backward)[s]
        free[s] = done[cell] + busy * going
        marks.append((s, cell.phase, cell.part, ready, done[cell]))
        if cell.part == 0:
            _shift(spans, stages[s].forward if forth else stages[s].backward, ready)
            for i in moves:
                spans[i] = Span(ready - coming, ready, "network")
    total: Any = 0.0
    ends = [part(stage.last, 1) for stage in stages]
    for s, (stage, end) in enumerate(zip(stages, ends, strict=True)):
        _shift(spans, stage.last, free[s])
        total = np.maximum(total, free[s] + end)
        marks.append((s, Phase.UPDATE, micro - 1, free[s], free[s] + end))
        for i in (*stage.into, *stage.back):
            waits[i] = items[i].seconds * micro
    if soonest_s is not None:
        total = np.maximum(total, soonest_s(passes, Works(forward, backward, ends, [busy * (a + b) for a, b in zip(into, on, strict=True)],
                                                          [busy * (a + b) for a, b in zip(back, home, strict=True)])))
    if hop_s is not None:
        total = total + micro * sum(hop_s(s, forward[s]) + hop_s(s + 1, backward[s + 1])
                                    for s in range(n - 1))
    blocks = [Block(s, phase.value, m, float(a), float(b))
              for s, phase, m, a, b in marks] if np.ndim(total) == 0 else []
    return Timeline(tuple(spans), tuple(waits), total, tuple(blocks))


def _shift(spans: list[Span], indices: list[int], by: float) -> None:
    for i in indices:
        spans[i] = replace(spans[i], start_s=spans[i].start_s + by, end_s=spans[i].end_s + by)


def _line(items: list[Item], indices: list[int], hidden: float, levels: int, rate: float,
          late_s: Late | None) -> Timeline:
    """The timeline of some of the steps; what is needed by none of them is needed at their end."""
    place = {old: new for new, old in enumerate(indices)}
    chosen = []
    for i in indices:
        by = items[i].needed_by
        if by is not None:
            by = next((place[j] for j in range(by, len(items)) if j in place), len(indices))
        chosen.append(replace(items[i], needed_by=by))
    return timeline(chosen, hidden, levels, rate, late_s)
