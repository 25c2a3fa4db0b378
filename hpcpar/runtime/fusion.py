"""Joins neighboring steps of a program whose kernels a backend fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcpar.kernels.interface import Bound, address
from hpcpar.runtime.actions import Actions
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import PASSES, Compute

#: The most steps of one action: a sum of gradients, an activation, a sum of layers, and the two
#: steps of batch normalization.
_MOST = 5


class _Candidate(NamedTuple):
    """A step with the kernels that its action calls."""

    number: int
    step: Compute
    action: Callable[[], None]
    calls: Sequence[Bound]


class Fusion:
    """Lets one action do several steps of a training program in fewer launches."""

    def __init__(self, actions: Actions, program: Program) -> None:
        self.actions, self.program = actions, program

    def join(self) -> None:
        """Join the steps of all passes. Each step gets a share of its action's time, in proportion
        to the bytes that its kernels alone would move.
        """
        for run in self.program.neighbors(lambda step: step.phase in PASSES):
            candidates = [self._candidate(i) for i in run]
            while candidates:
                candidates = candidates[self._join_first(candidates):]

    def _candidate(self, number: int) -> _Candidate:
        step, action = self.program.schedule.steps[number], self.program.actions[number]
        assert isinstance(step, Compute)
        return _Candidate(number, step, action, self.actions.calls(step, action))

    def _join_first(self, candidates: list[_Candidate]) -> int:
        """Join as many steps as possible with the first one; returns how many, or 1."""
        first = candidates[0].step
        for n in range(min(_MOST, len(candidates)), 0, -1):
            chosen = candidates[:n]
            if not all(c.calls and (c.step.phase, c.step.part) == (first.phase, first.part)
                       for c in chosen):
                continue
            end = self.program.steps.moments(0, chosen[-1].number).stop
            launch = self.actions.backend.fuse(
                [call for c in chosen for call in c.calls],
                [unread for c in chosen for unread in [self._unread(c, end)] * len(c.calls)])
            if launch is not None:
                action = self.actions.fused(launch, [c.action for c in chosen],
                                            [c.step for c in chosen])
                self.program.join(action, {c.number: _bytes(c.calls) for c in chosen})
                return n
        return 1

    def _unread(self, c: _Candidate, end: int) -> set[int]:
        """Addresses of the arrays of a step that nobody reads at the moment `end` or later."""
        now, found = self.program.steps.moments(c.number, c.number).start, set()
        current = self.actions.passes.find(c.step.layer, c.step.part)
        arrays, views = (b[c.step.layer].each for b in (current.blocks, current.plan.blocks))
        for array, view in zip(arrays, views, strict=True):
            if view is not None and view.owner is not None and any(
                    now in life and life.stop <= end for life in view.owner.lives):
                found.add(address(array))
        return found


def _bytes(calls: Sequence[Bound]) -> int:
    """Bytes of the arrays that kernels get."""
    return sum(arg.nbytes for call in calls for arg in call.args if hasattr(arg, "nbytes"))
