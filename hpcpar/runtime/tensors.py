"""The arrays that a communication step moves on this rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hpcpar.kernels.interface import Array
from hpcpar.network.graph import Network
from hpcpar.plan.plan import Plan
from hpcpar.runtime.parameters import Parameters
from hpcpar.runtime.passes import Pass, Passes
from hpcpar.schedule.steps import Comm, Kind, Phase


class Tensors:
    """Finds them in blocks, weights and sums.

    Parameters
    ----------
    part : callable
        The pass of a layer in a micro-batch or turn.
    turns : callable
        The turns.
    buckets : mapping
        Gradients that are summed together, by the index of the step.
    sums : numpy.ndarray
        Loss and correct samples of the mini-batch.
    """

    def __init__(
        self, network: Network, plan: Plan, rank: int, make: Passes, parameters: Mapping[str, Parameters], buckets: Mapping[int, Array],
        sums: np.ndarray, part: Callable[[str, int], Pass], turns: Callable[[], Sequence[Pass]],
    ) -> None:
        self.network, self.plan, self.rank, self.make, self.parameters = network, plan, rank, make, parameters
        self.buckets, self.sums, self.part, self._turns = buckets, sums, part, turns

    @property
    def turns(self) -> Sequence[Pass]:
        return self._turns()

    def of(self, step: Comm) -> tuple[Array, Array]:
        """The arrays before and after a communication step."""
        if step.phase is Phase.LOSS:
            sums = self.turns[step.part].sums if self.turns else self.sums
            return sums[: 2 * step.holder.holds(self.rank)], sums
        if step.phase in (Phase.GRADIENT, Phase.UPDATE):
            return self._weights(step)
        here, back = self.part(step.layer, step.part), step.phase is Phase.BACKWARD
        blocks, name = here.blocks[step.layer], step.tensor.removesuffix(".gradient").removeprefix(
            f"{step.layer}.")
        if name == "moments":
            op = here.ops[step.layer]
            return (op.moments_gradient,) * 2 if back else (op.moments,) * 2
        if name == "output":
            return (blocks.dout, blocks.dy) if back else (blocks.y, blocks.out)
        which = which_input(step.tensor)
        e = here.edges[step.layer][which]
        there = self.part(e.producer.name, step.part)
        producer = there.blocks[e.producer.name]
        if not back:
            return self._turned(producer.out, here, there, step), blocks.xs[which]
        held = blocks.dxs[which]
        if which in blocks.arriving:
            return held, blocks.arriving[which]
        # of a tensor with several readers, what is summed in place is added to the others' after
        # that
        shared = step.kind is Kind.ALLREDUCE and len(self.network.consumers[e.producer.name]) > 1
        return held, held if shared else self._turned(producer.dout, here, there, step)

    def _turned(self, whole: Array, here: Pass, there: Pass, step: Comm) -> Array:
        """What a turn takes of a block before the switch; of one rank's samples, the others hold
        nothing that counts.
        """
        if here is there or not self.turns:
            return whole
        if step.phase is Phase.BACKWARD and self.plan.switch == "one":
            assert step.group is not None
            if step.group.members(self.rank)[step.root] != self.rank:
                return here.blocks[step.layer].dxs[0]
        return self.make.slice_of(whole, step.part)

    def _weights(self, step: Comm) -> tuple[Array, Array]:
        if step.index in self.buckets:
            return self.buckets[step.index], self.buckets[step.index]
        p, how = self.parameters[step.layer], self.plan.synchronisation
        if step.phase is Phase.UPDATE:
            return (p.updated(p.flat) if how == "sharded" else p.matrix(p.flat)), p.matrix(p.flat)
        if how == "allreduce":
            return p.grad, p.grad
        return p.matrix(p.grad), p.matrix(p.grad) if how == "server" else p.matrix(p.grad)[:, p.shard[1][0]:p.shard[1][1]]  # type: ignore[index]


def which_input(tensor: str) -> int:
    """The place of a tensor among its layer's inputs."""
    return int(tensor.removesuffix(".gradient").rpartition(".input")[2] or 0)
