"""One piece of memory for all of a rank's buffers, laid out by its memory plan."""

from __future__ import annotations

from hpcpar.kernels.interface import Array, Backend
from hpcpar.schedule.memory_plan.allocation import MemoryPlan
from hpcpar.schedule.memory_plan.rank_steps import RankSteps
from hpcpar.schedule.memory_plan.views import Buffer, View


class Arena:
    """Allocates the buffers of a memory plan, and turns its views into arrays."""

    def __init__(self, backend: Backend, memory: MemoryPlan) -> None:
        self._backend, self._dtype = backend, memory.passes.plan.formats.item_dtype
        self._buffers = memory.buffers
        self._slab = backend.zeros((memory.place(),), self._dtype)
        self.laid_bytes = int(self._slab.nbytes)

    def array(self, view: View) -> Array:
        """The array of a view; an empty view gets an array outside the arena."""
        if view.buffer is None:
            return self._backend.empty(view.shape, self._dtype)
        return view.of(self._whole(view.buffer))

    def _whole(self, buffer: Buffer) -> Array:
        return self._slab[buffer.first:buffer.first + buffer.items].reshape(buffer.shape)

    def clears(self, program: RankSteps) -> dict[int, list[Array]]:
        """By step of a program, the arrays to clear before it because others share their memory."""
        out: dict[int, list[Array]] = {}
        moments = program.moments(0, len(program.schedule.steps))
        for buffer in self._buffers:
            for life in buffer.lives if buffer.clears else ():
                if life.start in moments:
                    out.setdefault(life.start - program.start, []).append(self._whole(buffer))
        return out
