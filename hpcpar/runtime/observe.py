"""Looking at a layer's output and its gradient while a program runs: memory is used again as soon
as nobody needs them.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from hpcpar.kernels.interface import Array, Backend
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Comm, Op, Phase, Role, Step


class Watch:
    """Copies of a program's outputs and gradients, each taken when it is complete, in the last
    micro-batch or FC pass.

    Attributes
    ----------
    outputs, gradients : dict
        The part of a layer's output that this rank owns, and of its gradient, on the host, by the
        layer's name.
    """

    def __init__(self, executor: Executor, program: Program | None) -> None:
        assert program is not None
        self.executor, self.program = executor, program
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        #: (layer, True for its gradient), by the step before which it is copied; -1: never.
        self._due: dict[int, list[tuple[str, bool]]] = defaultdict(list)
        self._steps = [program.schedule.steps[i] for i in program.steps.mine]
        self._end = len(program.schedule.steps)
        for layer in executor.network.layers[:-1]:
            if executor.lives(layer.name):
                self._due[self._made(layer.name)].append((layer.name, False))
                self._due[self._returned(layer.name)].append((layer.name, True))
        program.watch = self._look

    def close(self) -> None:
        """Stop looking."""
        self.program.watch = None

    def _look(self, i: int) -> None:
        for layer, gradient in self._due.get(i, ()):
            blocks = self.executor.last_part(layer).blocks[layer]
            array = blocks.dout if gradient else blocks.out
            if array is not None:
                into = self.gradients if gradient else self.outputs
                into[layer] = on_host(self.executor.backend, array)

    def _made(self, layer: str) -> int:
        """The step before which the output is complete."""
        part = self.executor.last_part(layer).part
        forward = [s for s in self._steps if s.phase is Phase.FORWARD and s.part == part]
        if not self.executor.network.by_name[layer].inputs:
            readers = self.executor.network.consumers[layer]
            return next((s.index for s in forward if s.layer in readers), self._end)
        made = max((self._done(s) for s in forward if s.layer == layer), default=0)
        return next((s.index for s in self._steps if s.index >= made), self._end)

    def _done(self, step: Step) -> int:
        """The step before which a step of a layer has written the output, where it does."""
        if not isinstance(step, Comm):
            return step.index + 1
        return self.program.steps.until[step.index] if step.tensor.role is Role.OUTPUT else 0

    def _returned(self, layer: str) -> int:
        """The step before which the gradient of the output is complete: the first that reads it, -1
        where there is none.
        """
        part = self.executor.last_part(layer).part
        for s in self._steps:
            if s.phase is not Phase.BACKWARD or s.layer != layer or s.part != part:
                continue
            if s.tensor.role is Role.OUTPUT if isinstance(s, Comm) else s.op is not Op.ACCUMULATE:
                return s.index
        return -1


def on_host(backend: Backend, array: Array) -> np.ndarray:
    """A copy on the host of an array, or of a part of one."""
    flat, out = backend.empty((array.size,), array.dtype), np.empty(array.size, array.dtype)
    backend.pack(array, flat)
    backend.to_host(flat, out)
    return out.reshape(array.shape)
