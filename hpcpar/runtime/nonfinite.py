"""Where values stop being finite: found in the iteration in which it happens, as weights and memory
are overwritten after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.runtime.observe import Watch
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Compute, Phase

if TYPE_CHECKING:
    from hpcpar.runtime.executor import Executor


class Finite:
    """Looks at the first gradient of every backward pass; where that is not finite, at all outputs
    that are still there.

    Parameters
    ----------
    alive : mapping
        The steps (bits) at which a layer's output is there, by its name and the number of the pass.

    Attributes
    ----------
    first : str or None
        The first layer on this rank whose output was not finite.
    """

    def __init__(self, executor: Executor, program: Program,
                 alive: Mapping[tuple[str, int], int]) -> None:
        self.executor, self.alive = executor, alive
        self.first: str | None = None
        seen: set[int] = set()
        for i in program.mine:
            step = program.schedule.steps[i]
            if isinstance(step, Compute) and step.phase is Phase.BACKWARD and step.part not in seen:
                seen.add(step.part)
                program.before[i] = self._look(step, i)

    def _look(self, step: Compute, i: int) -> Callable[[], None]:
        executor = self.executor
        blocks = executor.part(step.layer, step.part).blocks[step.layer]
        gradient = blocks.dxs[0] if blocks.dy is None else blocks.dy
        finite = executor.backend.all_finite
        passes = [(layer.name, executor.part(layer.name, step.part))
                  for layer in executor.network.layers[:-1]]
        there = [(name, p.blocks[name].out) for name, p in passes if self.alive.get((name, p.part), 0) >> i & 1]

        def look() -> None:
            if gradient is not None and not finite(gradient):
                self.first = self.first or next((name for name, out in there if not finite(out)),
                                                None)

        return look


def first_of_a_pass(executor: Executor, program: Program) -> str | None:
    """Of a forward pass, done once more: every rank must call it."""
    watch = Watch(executor, program)
    program.run()
    program.watch = None
    return next((name for name, out in watch.outputs.items() if not np.isfinite(out).all()), None)
