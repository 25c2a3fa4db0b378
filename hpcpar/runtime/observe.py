"""Looking at a layer's output and its gradient while a program runs: memory is used again as soon
as nobody needs them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hpcpar.kernels.interface import Array, Backend
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Comm, Op, Phase

if TYPE_CHECKING:
    from hpcpar.runtime.executor import Executor


class Watch:
    """Copies of what a program makes, each taken when it is complete, of the last micro-batch or
    turn.

    Attributes
    ----------
    outputs, gradients : dict
        What this rank owns of a layer's output, and of its gradient, on the host, by the layer's
        name.
    """

    def __init__(self, executor: Executor, program: Program) -> None:
        self.executor, self.program = executor, program
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        self._due: dict[int, list[Callable[[], None]]] = defaultdict(list)
        for layer in executor.network.layers[:-1]:
            if executor.lives(layer.name):
                self._due[self._made(layer.name)].append(self._copy(layer.name, "out", self.outputs))
                at = self._returned(layer.name)
                if at is not None:
                    self._due[at].append(self._copy(layer.name, "dout", self.gradients))
        program.watch = self._step

    def _step(self, i: int) -> None:
        for copy in self._due.get(i, ()):
            copy()

    def _part(self, layer: str) -> int:
        """The last pass that has the layer."""
        executor = self.executor
        return executor.part(layer, max(executor.plan.microbatches, executor.plan.turns) - 1).part

    def _made(self, layer: str) -> int:
        """The step before which the output is complete."""
        steps, part = self.program.schedule.steps, self._part(layer)
        if not self.executor.network.by_name[layer].inputs:
            readers = self.executor.network.consumers[layer]
            read = (i for i in self.program.mine if steps[i].phase is Phase.FORWARD
                    and steps[i].layer in readers and steps[i].part == part)
            return next(read, len(steps))
        made = 0
        for i in self.program.mine:
            step = steps[i]
            if step.phase is Phase.FORWARD and step.layer == layer and step.part == part:
                if isinstance(step, Comm) and step.tensor.endswith(".output"):
                    made = max(made, self.program.until[i])
                elif not isinstance(step, Comm):
                    made = max(made, i + 1)
        return min([i for i in self.program.mine if i >= made], default=len(steps))

    def _returned(self, layer: str) -> int | None:
        """The step before which the gradient of the output is complete: the first that reads it."""
        steps, part = self.program.schedule.steps, self._part(layer)
        for i in self.program.mine:
            step = steps[i]
            if step.phase is not Phase.BACKWARD or step.layer != layer or step.part != part:
                continue
            if step.tensor == f"{layer}.output.gradient" if isinstance(step, Comm) else step.op is not Op.ACCUMULATE:
                return i
        return None

    def _copy(self, layer: str, which: str, into: dict[str, np.ndarray]) -> Callable[[], None]:
        executor = self.executor
        array = getattr(executor.part(layer, max(executor.plan.microbatches, executor.plan.turns)
                                      - 1).blocks[layer], which)

        def copy() -> None:
            if array is not None:
                into[layer] = on_host(executor.backend, array)

        return copy


def on_host(backend: Backend, array: Array) -> np.ndarray:
    """A copy on the host of an array, or of a part of one."""
    flat, out = backend.empty((array.size,), array.dtype), np.empty(array.size, array.dtype)
    backend.pack(array, flat)
    backend.to_host(flat, out)
    return out.reshape(array.shape)
