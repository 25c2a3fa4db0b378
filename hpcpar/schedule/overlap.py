"""Decides which step waits for which movement.

Without overlap, the next step waits for every movement. With ``"gradient"``, sums of weight
gradients and of the loss travel until their update or the end. With ``"full"``, a halo also travels
while its convolution computes the interior, and an input gradient while its layer computes the
weight gradient.

An `Emitter` appends the steps of one pass in order, and `Emitter.wait` says that the next step
needs a movement. `awaited` finds the same step in the list of all passes.
"""

from __future__ import annotations

import bisect
import sys
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Flags, Ints, Names
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.pipeline_order import stage_of
from hpcpar.schedule.steps import (
    CHEAPEST,
    CODES,
    DIRECT,
    AnyPattern,
    Choice,
    Chooser,
    Comm,
    Compute,
    Op,
    Phase,
    Role,
    Step,
    TensorRef,
)

IS_DIRECT = np.array([code in DIRECT for code in range(len(CODES) + 1)])
#: A movement that no step waits for yet.
_NOT_YET = -1


@dataclass(frozen=True, eq=False)
class Outline:
    """The steps of one pass, in order; `Comm.needed_by` is a place in this list.

    `starts` are the first ranks of the pipeline's stages.
    """

    plan: Plan
    edges: Edges
    starts: Sequence[int]
    steps: tuple[Step, ...]


class Emitter:
    """Appends the steps of a pass, for a plan or a family of plans.

    Parameters
    ----------
    starts : sequence of int
        The first rank of each stage of a pipeline (`pipeline_order.firsts`).
    """

    def __init__(self, network: Network, plan: Plan, choose: Chooser,
                 starts: Sequence[int] = (0,)) -> None:
        self.network, self.plan, self.choose, self.starts = network, plan, choose, starts
        #: Index of the current pass through the fully connected layers.
        self.part = 0
        self.edges = Edges(network, plan)
        self.steps: list[Step] = []
        self._needed_by: dict[int, int] = {}
        self._chosen: dict[Hashable, Choice] = {}

    def outline(self) -> Outline:
        """The steps so far."""
        steps = (step if isinstance(step, Compute)
                 else replace(step, needed_by=self._needed_by[step.index]) for step in self.steps)
        return Outline(self.plan, self.edges, self.starts, tuple(steps))

    def compute(self, phase: Phase, layer: Layer, op: Op, batch: int, present: Flags = True,
                tensor: TensorRef | None = None) -> None:
        """Append a compute step if it occurs in some case."""
        if present is not True and not np.asarray(present).any():
            return
        # a convolution's interior depends on the part of its input that a rank owns
        producers = layer.inputs if op in (Op.INTERIOR, Op.BOUNDARY) else ()
        key = (self.edges.key(layer, batch), op,
               *(self.plan.configs[name].key for name in producers))
        stage = stage_of(self.starts, self.plan.configs[layer.name].first)
        self.steps.append(Compute(phase, layer.name, op, batch, key, tensor, present, self.part,
                                  len(self.steps), stage))

    def move(
        self, phase: Phase, layer: str, tensor: TensorRef, pattern: AnyPattern, source: Layout,
        destination: Layout, key: Hashable, item_bytes: int | None = None, root: int = 0,
        covers: tuple[str, ...] = (),
    ) -> Comm | None:
        """Append a movement; return None if nothing moves in any case."""
        if not pattern.kinds:
            return None
        formats = self.plan.formats
        size = item_bytes or (formats.weight_bytes if tensor.role is Role.WEIGHT
                              else formats.item_bytes)
        sender = stage_of(self.starts, source.config.first)
        receivers = [stage_of(self.starts, destination.config.first)]
        if phase is Phase.LOSS:  # the last stage computes it, and all stages sum it
            sender, receivers = len(self.starts) - 1, list(range(len(self.starts)))
        step = Comm(phase, layer, tensor, pattern, source, destination, size,
                    (key, phase, size, root), root=root, covers=covers, part=self.part,
                    index=len(self.steps), stage=sender, receivers=tuple(receivers))
        step = self._with_algorithm(step)
        self.steps.append(step)
        overlaps = self.plan.overlap is not Overlap.NONE
        self._needed_by[step.index] = _NOT_YET if overlaps else len(self.steps)
        return step

    def _with_algorithm(self, step: Comm) -> Comm:
        direct = IS_DIRECT[step.pattern.code]
        if direct.all():
            return step
        if step.key not in self._chosen:
            self._chosen[step.key] = Choice(*self.choose(step))
        choice = self._chosen[step.key]
        if choice.algorithm is CHEAPEST:
            return replace(step, algorithm=CHEAPEST, quote=choice.quote)
        return replace(step, algorithm=cast("str", _plain(direct, "direct", choice.algorithm)),
                       segments=cast("int", _plain(direct, 1, choice.segments)),
                       inner=cast("int", _plain(direct, 1, choice.inner)), quote=choice.quote)

    def wait(self, move: Comm | None) -> None:
        """Make the next step wait for `move`, unless an earlier step does."""
        if move is not None and self._needed_by[move.index] == _NOT_YET:
            self._needed_by[move.index] = len(self.steps)


def _plain(direct: Flags, otherwise: Ints | Names, chosen: Ints | Names) -> object:
    """The values chosen where not `direct`; a plain value for a single plan."""
    values = np.where(direct, otherwise, chosen)
    return values if values.ndim else values.item()


class Listed(NamedTuple):
    """Step `step` of micro-batch `part`, in pass number `number` of all stages' passes."""

    part: int
    number: int
    step: Step


def awaited(places: Sequence[Listed]) -> list[int]:
    """For each place of an iteration's list, the place of the first step that needs it.

    It is, in the movement's micro-batch, the first step inside a receiving stage at or after the
    one that the outline names. Other stages' steps do not count, because the list orders them
    differently from the outline.
    """
    # (micro-batch, stage) -> (place in its outline, place in the list), and the end
    inside: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(
        lambda: [(sys.maxsize, len(places))])
    pass_ends: dict[int, int] = {}
    for at, (part, number, step) in enumerate(places):
        if isinstance(step, Compute) or step.stage in step.receivers:
            inside[part, step.stage].append((step.index, at))
        pass_ends[number] = at + 1
    for pairs in inside.values():
        pairs.sort()
    needed = list(range(len(places)))
    for at, (part, number, step) in enumerate(places):
        if isinstance(step, Comm):
            named = (step.needed_by, -1)
            waiting = [inside[part, receiver] for receiver in step.receivers]
            first = min(pairs[bisect.bisect_left(pairs, named)][1] for pairs in waiting)
            # if no later step needs it, it completes by the end of its pass
            needed[at] = first if first > at else pass_ends[number]
    return needed
