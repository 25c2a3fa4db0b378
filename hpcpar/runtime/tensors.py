"""The arrays that a communication step moves on this rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcpar.kernels.interface import Array
from hpcpar.plan.plan import Plan, Synchronisation
from hpcpar.runtime.arena import Arena
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Passes
from hpcpar.schedule.memory_plan.plan import MemoryPlan
from hpcpar.schedule.steps import Comm, Phase, Role


class Tensors:
    """Finds them in blocks, weights and sums.

    Parameters
    ----------
    buckets : mapping
        Gradients that are summed together, by the index of the step.
    sums : numpy.ndarray
        Loss and correct samples of the mini-batch.
    """

    def __init__(self, plan: Plan, memory: MemoryPlan, arena: Arena, passes: Passes,
                 parameters: Mapping[str, Parameters], buckets: Mapping[int, Array],
                 sums: NDArray[np.float64]) -> None:
        self.plan, self.memory, self.arena, self.passes = plan, memory, arena, passes
        self.parameters, self.buckets, self.sums = parameters, buckets, sums
        self._sharded = plan.synchronisation is Synchronisation.SHARDED

    def of(self, step: Comm) -> tuple[Array, Array]:
        """The arrays before and after a communication step."""
        if step.phase is Phase.LOSS:
            fc_passes = self.plan.fc_passes > 1
            sums = self.passes.find(step.layer, step.part).sums if fc_passes else self.sums
            return sums[: 2 * step.source.holds(self.memory.rank)], sums
        if step.phase is Phase.GRADIENT:
            return self._gradients(step)
        if step.phase is Phase.UPDATE:
            p = self.parameters[step.layer]
            whole = p.matrix(p.flat)
            return p.updated(p.flat) if self._sharded else whole, whole
        ref = step.tensor
        if ref.role is Role.MOMENTS:
            op = self.passes.find(ref.layer, step.part).ops[ref.layer]
            return (op.moments_gradient if ref.gradient else op.moments,) * 2
        before, after = self.memory.tensors.moved(step)
        return self.arena.array(before), self.arena.array(after)

    def _gradients(self, step: Comm) -> tuple[Array, Array]:
        """The gradient of a layer's weights, or of a bucket of layers."""
        if step.index in self.buckets:
            return self.buckets[step.index], self.buckets[step.index]
        p = self.parameters[step.layer]
        if self.plan.synchronisation is Synchronisation.ALLREDUCE:
            return p.grad, p.grad
        whole = p.matrix(p.grad)
        return whole, p.updated(p.grad) if self._sharded else whole
