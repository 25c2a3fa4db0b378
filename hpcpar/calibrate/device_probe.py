"""Rates of one rank's device with all ranks at work: products, copies, launches, packing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcpar.calibrate.timer import Timer
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend

#: Edge of the square matrices, and bytes of the vectors.
_EDGE, _LONG_BYTES, _PIECE_BYTES = 768, 8 << 20, 1 << 20


class DeviceProbe:
    """The timers of a device, in float32.

    Parameters
    ----------
    first : bool
        This rank is the first of its node: it copies once more while the others of the node rest.
    """

    def __init__(self, world: World, backend: Backend, first: bool) -> None:
        rng = np.random.default_rng(0)
        a, b, c = (backend.empty((_EDGE, _EDGE), "float32") for _ in range(3))
        for matrix in (a, b):
            backend.to_device(rng.standard_normal((_EDGE, _EDGE)).astype("float32"), matrix)
        x, y = (backend.zeros((_LONG_BYTES // 4,), "float32") for _ in range(2))
        small = backend.zeros((8,), "float32")
        half = backend.zeros((16, 32, 32, 32), "float32")[:, :16]
        flat = backend.zeros((half.size,), "float32")
        piece = backend.zeros((_PIECE_BYTES // 4,), "float32")
        self._packed_bytes = int(half.size) * 4

        def timer(action: Callable[[], None]) -> Timer:
            def run() -> None:
                action()
                backend.synchronize()

            return Timer(world, run)

        self._product = timer(lambda: backend.gemm(a, b, c))
        self._copy = timer(lambda: backend.unpack(x, y))
        self._alone = timer((lambda: backend.unpack(x, y)) if first else (lambda: None))
        self._launch = timer(lambda: backend.scale(small, 1.0))
        self._pack = timer(lambda: backend.pack(half, flat))
        self._add = timer(lambda: backend.unpack_add(piece, x[: piece.size]))

    @property
    def timers(self) -> list[Timer]:
        return [self._product, self._copy, self._alone, self._launch, self._pack, self._add]

    @property
    def flops_per_s(self) -> float:
        return 2.0 * _EDGE**3 / self._product.seconds

    @property
    def copy_bytes_per_s(self) -> float:
        """Read and written, with all ranks of a node copying."""
        return 2.0 * _LONG_BYTES / self._copy.seconds

    @property
    def alone_bytes_per_s(self) -> float:
        """Read and written, with one rank of a node copying."""
        return 2.0 * _LONG_BYTES / self._alone.seconds

    @property
    def launch_s(self) -> float:
        return self._launch.seconds

    @property
    def pack_s_per_byte(self) -> float:
        return self._pack.seconds / self._packed_bytes

    @property
    def add_s_per_byte(self) -> float:
        return self._add.seconds / _PIECE_BYTES
