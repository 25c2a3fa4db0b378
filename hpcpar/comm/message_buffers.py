"""Memory of the messages of many steps: those that never overlap in time use the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcpar.comm.buffers import Buffers
from hpcpar.comm.packing import ALIGNMENT_BYTES, most, pack
from hpcpar.kernels.interface import Backend


def place(backend: Backend, steps: Sequence[tuple[Buffers, int]]) -> tuple[int, int]:
    """Give buffers their memory; returns its bytes, and what is in flight at once at the most.

    Parameters
    ----------
    steps : sequence of (Buffers, int)
        With the moments (bits) at which each is in flight.
    """
    total = flying = 0
    for device in (False, True):
        here = [(b, alive) for b, alive in steps if b.on_device is device]
        sizes = [-(-_bytes(b) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for b, _ in here]
        places, size = pack(sizes, [alive for _, alive in here])
        slab: Any = backend.empty((size,), np.uint8) if device else backend.host_buffer(size, np.uint8)
        for (b, _), at in zip(here, places, strict=True):
            b.place(slab[at:at + _bytes(b)].view(b.dtype))
        total += size
        flying += most([_bytes(b) for b, _ in here], [alive for _, alive in here])
    return total, flying


def _bytes(b: Buffers) -> int:
    return int(b.wire_items + b.landing_items) * b.dtype.itemsize
