"""Runs an operator that computes in float32 on blocks of 16 bits."""

from __future__ import annotations

from collections.abc import Callable

from hpcpar.kernels.bfloat16 import widened
from hpcpar.kernels.interface import Array
from hpcpar.runtime.ops.base import Context, Operator
from hpcpar.schedule.memory_plan.blocks import Blocks


class WidenedOp(Operator):
    """In each step, the inner operator gets float32 copies of its blocks; what it writes is
    rounded once.
    """

    def __init__(self, ctx: Context, make: Callable[[Context], Operator]) -> None:
        super().__init__(ctx)
        ctx.blocks = self._copies()
        self._inner = make(ctx)
        ctx.blocks = self._inner.blocks = Blocks()

    def _copies(self) -> Blocks[Array]:
        def wide(block: Array | None) -> Array:
            return None if block is None else widened(self.backend, block)

        blocks = self.blocks
        return Blocks([*map(wide, blocks.xs)], [*map(wide, blocks.dxs)], y=wide(blocks.y),
                      dy=wide(blocks.dy))

    @property
    def kept_bytes(self) -> int:
        return self._inner.kept_bytes

    @property
    def moments(self) -> Array:
        return self._inner.moments

    @property
    def moments_gradient(self) -> Array:
        return self._inner.moments_gradient

    def statistics(self) -> None:
        self._run(self._inner.statistics)

    def forward(self) -> None:
        if self.blocks.y is not None:
            self._run(self._inner.forward, outputs=True)
        else:  # a loss computes its gradient with its value
            self._run(self._inner.forward, gradients=True)

    def backward(self) -> None:
        self._run(self._inner.backward, gradients=True)

    def backward_weight(self) -> None:
        self._run(self._inner.backward_weight)

    def finish_weight(self) -> None:
        self._inner.finish_weight()

    def _run(self, step: Callable[[], None], *, outputs: bool = False,
             gradients: bool = False) -> None:
        stored, wide = self.blocks, self._copies()
        self.ctx.blocks = self._inner.blocks = wide
        step()
        self.ctx.blocks = self._inner.blocks = Blocks()
        results = [(wide.y, stored.y)] if outputs else []
        results += zip(wide.dxs, stored.dxs, strict=True) if gradients else []
        for result, block in results:
            if block is not None:
                self.backend.copy(result, block)
