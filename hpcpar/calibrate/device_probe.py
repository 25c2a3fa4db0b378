"""Rates of a rank's device while all ranks work: products, copies, launches, packing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpcpar.calibrate.timer import Timer, long_enough
from hpcpar.comm.world import World
from hpcpar.kernels.interface import Backend

#: Ranges of the edge of square matrices and of the bytes of vectors. They double until an operation
#: takes this time (s). Shorter operations do not fill a GPU.
_EDGES, _PRODUCT_S = (768, 12_288), 5e-3
_VECTOR_BYTES, _COPY_S = (8 << 20, 1 << 30), 1e-3
#: Length of a vector, as a multiple of the length of the additions.
_PIECE = 8


class DeviceProbe:
    """The timers of a device, in float32, and of bfloat16 products where it computes them itself.

    Parameters
    ----------
    first : bool
        This rank is the first of its node: it also copies while the node's other ranks are idle.
    """

    def __init__(self, world: World, backend: Backend, first: bool) -> None:
        self._world, self._backend = world, backend
        small = backend.zeros((8,), "float32")
        half = backend.zeros((16, 32, 32, 32), "float32")[:, :16]
        flat = backend.zeros((half.size,), "float32")
        self._packed_bytes = int(half.size) * 4
        self._edge, self._product = long_enough(_EDGES, _PRODUCT_S, self._matrices)
        itself = {"gemm", "conv_forward"} <= backend.bfloat16_kernels
        self._halves = [self._matrices(self._edge, "bfloat16")] if itself else []
        self._long_bytes, self._copy = long_enough(_VECTOR_BYTES, _COPY_S, self._vectors)
        x, y = (backend.zeros((self._long_bytes // 4,), "float32") for _ in range(2))
        piece = y[: y.size // _PIECE]
        self._piece_bytes = int(piece.size) * 4
        self._alone = self._timer((lambda: backend.unpack(x, y)) if first else (lambda: None))
        self._launch = self._timer(lambda: backend.scale(small, 1.0))
        self._pack = self._timer(lambda: backend.pack(half, flat))
        self._add = self._timer(lambda: backend.unpack_add(piece, x[: piece.size]))

    def _timer(self, action: Callable[[], None]) -> Timer:
        return Timer(self._world, self._backend, action)

    def _matrices(self, edge: int, dtype: str = "float32") -> Timer:
        """A product of matrices with random numbers."""
        rng = np.random.default_rng(0)
        a, b, c = (self._backend.empty((edge, edge), dtype) for _ in range(3))
        for matrix in (a, b):
            self._backend.to_device(rng.standard_normal((edge, edge), np.float32), matrix)
        return self._timer(lambda: self._backend.gemm(a, b, c))

    def _vectors(self, size_bytes: int) -> Timer:
        """A copy of a vector."""
        x, y = (self._backend.zeros((size_bytes // 4,), "float32") for _ in range(2))
        return self._timer(lambda: self._backend.unpack(x, y))

    @property
    def timers(self) -> list[Timer]:
        return [self._product, *self._halves, self._copy, self._alone, self._launch, self._pack,
                self._add]

    @property
    def flops_per_s(self) -> float:
        return 2.0 * self._edge**3 / self._product.seconds

    @property
    def bfloat16_flops_per_s(self) -> float | None:
        """None if the device computes convolutions or products on float32 copies."""
        return 2.0 * self._edge**3 / self._halves[0].seconds if self._halves else None

    @property
    def copy_bytes_per_s(self) -> float:
        """Bytes read plus bytes written, while all ranks of a node copy."""
        return 2.0 * self._long_bytes / self._copy.seconds

    @property
    def alone_bytes_per_s(self) -> float:
        """Bytes read plus bytes written, while one rank of a node copies."""
        return 2.0 * self._long_bytes / self._alone.seconds

    @property
    def launch_s(self) -> float:
        return self._launch.seconds

    @property
    def pack_s_per_byte(self) -> float:
        return self._pack.seconds / self._packed_bytes

    @property
    def add_s_per_byte(self) -> float:
        return self._add.seconds / self._piece_bytes
