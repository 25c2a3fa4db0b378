"""Copies outputs and gradients while a program runs, before their memory is reused."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from hpcpar.kernels.bfloat16 import wide_type
from hpcpar.kernels.interface import Array, Backend
from hpcpar.runtime.executor import Executor
from hpcpar.runtime.program import Program
from hpcpar.schedule.steps import Comm, Op, Phase, Role, Step


class Watch:
    """Copies each output and gradient of a program once it is complete, in the last micro-batch or
    FC pass: `outputs` and `gradients` are host copies of the parts that this rank owns, by layer.
    """

    def __init__(self, executor: Executor, program: Program | None) -> None:
        assert program is not None
        self.executor, self.program = executor, program
        self.outputs: dict[str, np.ndarray] = {}
        self.gradients: dict[str, np.ndarray] = {}
        #: (layer, True for its gradient), by the step before which to copy; -1: never.
        self._due: dict[int, list[tuple[str, bool]]] = defaultdict(list)
        self._steps = [program.schedule.steps[i] for i in program.steps.mine]
        self._end = len(program.schedule.steps)
        for layer in executor.network.layers[:-1]:
            if executor.lives(layer.name):
                self._due[self._output_step(layer.name)].append((layer.name, False))
                self._due[self._gradient_step(layer.name)].append((layer.name, True))
        program.watch = self._look

    def close(self) -> None:
        """Stop copying."""
        self.program.watch = None

    def _look(self, i: int) -> None:
        for layer, gradient in self._due.get(i, ()):
            blocks = self.executor.last_part(layer).blocks[layer]
            array = blocks.dout if gradient else blocks.out
            if array is not None:
                copies = self.gradients if gradient else self.outputs
                copies[layer] = on_host(self.executor.backend, array)

    def _output_step(self, layer: str) -> int:
        """The step before which the output is complete."""
        part = self.executor.last_part(layer).part
        forward = [s for s in self._steps if s.phase is Phase.FORWARD and s.part == part]
        if not self.executor.network.by_name[layer].inputs:
            readers = self.executor.network.consumers[layer]
            return next((s.index for s in forward if s.layer in readers), self._end)
        written = max((self._written(s) for s in forward if s.layer == layer), default=0)
        return next((s.index for s in self._steps if s.index >= written), self._end)

    def _written(self, step: Step) -> int:
        """The step before which `step` has written its layer's output; 0 if it never does."""
        if not isinstance(step, Comm):
            return step.index + 1
        return self.program.steps.until[step.index] if step.tensor.role is Role.OUTPUT else 0

    def _gradient_step(self, layer: str) -> int:
        """The first step that reads the output's complete gradient; -1 if none does."""
        part = self.executor.last_part(layer).part
        for s in self._steps:
            if s.phase is not Phase.BACKWARD or s.layer != layer or s.part != part:
                continue
            if s.tensor.role is Role.OUTPUT if isinstance(s, Comm) else s.op is not Op.ACCUMULATE:
                return s.index
        return -1


def on_host(backend: Backend, array: Array) -> np.ndarray:
    """A host copy of an array or view; float32 for 16 bits."""
    kind = wide_type(array)
    flat, out = backend.empty((array.size,), kind), np.empty(array.size, kind)
    backend.copy(array, flat.reshape(array.shape))
    backend.to_host(flat, out)
    return out.reshape(array.shape)
