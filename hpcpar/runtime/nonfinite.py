"""Finds the layer whose values stop being finite, in the iteration in which it happens, because the
next iteration overwrites weights and memory. The host reads what was found with the loss.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

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
                outputs = self._outputs_at(i, step.part)
                if gradient is not None and outputs:
                    self._look(program, i, gradient, dict(outputs))

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

    def _look(self, program: Program, step: int, gradient: Array,
              outputs: dict[str, Array]) -> None:
        """Before a step, search outputs if the gradient is not finite."""
        found = self.executor.backend.zeros((len(outputs),), np.int64)
        program.before[step] = self.executor.backend.nonfinite_search(
            gradient, list(outputs.values()), found)
        self.executor.give_back(found, partial(self._receive, list(outputs)))

    def _receive(self, names: list[str], found: NDArray[np.generic]) -> None:
        if self._first is None:
            self._first = next((n for n, bad in zip(names, found, strict=True) if bad), None)
