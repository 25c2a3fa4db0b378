"""Appends steps to an outline: compute, movements, and which step waits for which movement."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from hpcpar.network.graph import Network
from hpcpar.network.layers import Layer
from hpcpar.plan.config import Flags, Ints, Names
from hpcpar.plan.layout import Layout
from hpcpar.plan.plan import Overlap, Plan
from hpcpar.schedule.edges import Edges
from hpcpar.schedule.outline_steps import (
    CHEAPEST,
    IS_DIRECT,
    NOT_YET,
    Chooser,
    Move,
    Outline,
    Quote,
    Task,
)
from hpcpar.schedule.pattern_family import AnyPattern
from hpcpar.schedule.steps import Op, Phase, Role, TensorRef


class Emitter:
    """Appends steps in order; `wait` says which step needs a movement."""

    def __init__(self, network: Network, plan: Plan, choose: Chooser) -> None:
        self.network, self.plan, self.choose = network, plan, choose
        #: Index of the current pass through the fully connected layers.
        self.part = 0
        self.edges = Edges(network, plan)
        self.out = Outline(plan, self.edges)
        self.steps = self.out.steps
        self._chosen: dict[Hashable, tuple[Names, Ints, Quote | None, Ints]] = {}

    def compute(self, phase: Phase, layer: Layer, op: Op, batch: int, present: Flags = True,
                tensor: TensorRef | None = None) -> None:
        """Append a compute step if it occurs in some case."""
        if present is True or np.asarray(present).any():
            self.steps.append(Task(phase, layer, op, batch, present, self.part, tensor))

    def move(
        self, phase: Phase, layer: str, tensor: TensorRef, pattern: AnyPattern, source: Layout,
        destination: Layout, key: Hashable, item_bytes: int | None = None, root: int = 0,
    ) -> Move | None:
        """Append a movement; return None if nothing moves in any case."""
        if not pattern.kinds:
            return None
        formats = self.plan.formats
        size = item_bytes or (formats.weight_bytes if tensor.role is Role.WEIGHT
                              else formats.item_bytes)
        step = Move(phase, layer, tensor, source, destination, pattern, size,
                    (key, phase is Phase.BACKWARD, size), part=self.part, root=root)
        direct = IS_DIRECT[pattern.code]
        if not direct.all():
            chosen = (step.key, root)
            if chosen not in self._chosen:
                algorithm, segments = self.choose(step)
                self._chosen[chosen] = (algorithm, segments, step.quote, step.inner)
            algorithm, segments, step.quote, step.inner = self._chosen[chosen]
            if algorithm is CHEAPEST:
                step.algorithm = CHEAPEST
            else:
                step.algorithm = np.where(direct, "direct", algorithm)
                step.segments = np.where(direct, 1, segments)
        self.steps.append(step)
        return step

    def wait(self, move: Move | None) -> None:
        """Make the next step wait for `move`."""
        overlaps = self.plan.overlap is not Overlap.NONE
        if move is not None and (overlaps or move.needed_by == NOT_YET):
            move.needed_by = len(self.steps)

    def wait_unless_overlapped(self, move: Move | None) -> Move | None:
        """Without overlap, make the next step wait for `move`, even if that step is a movement."""
        if self.plan.overlap is Overlap.NONE:
            self.wait(move)
        return move
