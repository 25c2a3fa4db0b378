"""Message memory of many steps; steps that never overlap in time share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.comm.buffers import Buffers
from hpcpar.kernels.interface import Backend
from hpcpar.schedule.memory_plan.packing import ALIGNMENT_BYTES, pack, peak


def place(backend: Backend, buffers: Sequence[Buffers], moments: Sequence[int]) -> tuple[int, int]:
    """Allocate the buffers' memory; return its bytes, and the most bytes in flight at once.

    For each buffer, `moments` has a bit for every moment at which it is in flight.
    """
    total = flying = 0
    for device in (False, True):
        chosen = [(b, alive) for b, alive in zip(buffers, moments, strict=True)
                  if b.on_device is device]
        alive = [bits for _, bits in chosen]
        sizes = [-(-_bytes(b) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for b, _ in chosen]
        places, size = pack(sizes, alive)
        slab: Any = backend.empty((size,), np.uint8) if device \
            else backend.host_buffer(size, np.uint8)
        for (b, _), at in zip(chosen, places, strict=True):
            b.place(slab[at:at + _bytes(b)].view(b.dtype))
        total += size
        flying += peak([_bytes(b) for b, _ in chosen], alive)[0]
    return total, flying


def _bytes(b: Buffers) -> int:
    return int(b.wire_items + b.landing_items) * b.dtype.itemsize
