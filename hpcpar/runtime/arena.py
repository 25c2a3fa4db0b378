"""One piece of memory for all of a rank's buffers, laid out by its memory plan."""

from __future__ import annotations

from hpcpar.kernels.interface import Array, Backend
from hpcpar.schedule.memory_plan.allocation import MemoryPlan
from hpcpar.schedule.memory_plan.views import Buffer, View


class Arena:
    """Allocates the buffers of a memory plan, and turns its views into arrays."""

    def __init__(self, backend: Backend, memory: MemoryPlan) -> None:
        self._backend, self._dtype = backend, memory.plan.dtype
        self._places = memory.place()
        self._slab = backend.zeros((self._places.items,), self._dtype)
        self.laid_bytes = int(self._slab.nbytes)

    def array(self, view: View) -> Array:
        """The array of a view; an empty view gets an array outside the arena."""
        if view.buffer is None:
            return self._backend.empty(view.shape, self._dtype)
        return view.of(self._whole(view.buffer))

    def _whole(self, buffer: Buffer) -> Array:
        first = self._places.first[buffer]
        return self._slab[first:first + buffer.items].reshape(buffer.shape)

    def clears(self, program: int) -> dict[int, list[Array]]:
        """By step of a program, the arrays to clear before it because others share their memory."""
        out: dict[int, list[Array]] = {}
        for buffer in self._places.shared:
            for life in buffer.lives:
                if life.program == program:
                    out.setdefault(life.first, []).append(self._whole(buffer))
        return out
