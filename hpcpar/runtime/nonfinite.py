"""Finds the layer whose values stop being finite, in the iteration in which it happens, because the
next iteration overwrites weights and memory.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.observe import Watch
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Compute, Phase


class NonfiniteDetector:
    """Finds the first layer on this rank whose output is not finite.

    In training it checks the first gradient of every backward pass, and if that is not finite, all
    outputs that are still in memory.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._first: str | None = None
        if executor.training is not None:
            self._hook(executor.training)

    def first(self) -> str | None:
        """The layer found in the last iteration, if any.

        Without training, this repeats the forward pass. Every rank must call it.
        """
        if self.executor.training is not None:
            return self._first
        program = self.executor.evaluation
        assert program is not None
        watch = Watch(self.executor, program)
        program.run()
        watch.close()
        return next((name for name, out in watch.outputs.items() if not np.isfinite(out).all()),
                    None)

    def _hook(self, program: Program) -> None:
        seen: set[int] = set()
        for i in program.steps.mine:
            step = program.schedule.steps[i]
            backward = isinstance(step, Compute) and step.phase is Phase.BACKWARD
            if backward and step.part not in seen:
                seen.add(step.part)
                blocks = self.executor.part(step.layer, step.part).blocks[step.layer]
                gradient = blocks.dxs[0] if blocks.dy is None else blocks.dy
                if gradient is not None:
                    outputs = self._outputs_at(i, step.part)
                    program.before[i] = partial(self._look, gradient, outputs)

    def _outputs_at(self, step: int, part: int) -> list[tuple[str, Array]]:
        """(layer, output) of every output that is in memory at a step of the training."""
        passes, out = self.executor.planned.passes, []
        for layer in self.executor.network.layers[:-1]:
            view = passes.find(layer.name, part).blocks[layer.name].out
            lives = view.owner.lives if view is not None and view.owner is not None else []
            if any(step in life for life in lives):  # the training is the first program
                array = self.executor.part(layer.name, part).blocks[layer.name].out
                out.append((layer.name, array))
        return out

    def _look(self, gradient: Array, outputs: list[tuple[str, Array]]) -> None:
        finite = self.executor.backend.all_finite
        if self._first is None and not finite(gradient):
            self._first = next((name for name, out in outputs if not finite(out)), None)
