"""Fully connected layer on a block: the local part of a 1.5D matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hpcpar.kernels.interface import Bound
from hpcpar.network.layers import Linear
from hpcpar.runtime.ops.base import Operator
from hpcpar.runtime.ops.registry import operator
from hpcpar.schedule.steps import Compute, Op


@operator(Linear)
class LinearOp(Operator):
    """Y = X W^T + b; a partial sum where the rank has only some input features (k)."""

    def calls(self, step: Compute) -> Sequence[Bound]:
        return self._product if step.op is Op.FORWARD else ()

    @cached_property
    def _product(self) -> list[Bound]:
        p, bind = self.parameters, self.backend.bind
        calls = [bind("gemm", self.x, p.weight, self.y, transpose_b=True, tick=self.ctx.tick)]
        if p.bias is not None:
            calls.append(bind("add_bias", self.y, p.bias))
        return calls

    def _forward(self) -> None:
        for call in self._product:
            call()

    def _backward(self) -> None:
        self.backend.gemm(self.dy, self.parameters.weight, self.dx, tick=self.ctx.tick)

    def _backward_weight(self) -> None:
        p = self.parameters
        self.backend.gemm(self.dy, self.x, p.dweight, transpose_a=True, tick=self.ctx.tick)
        if p.dbias is not None:
            self.backend.sum_samples(self.dy, p.dbias)
